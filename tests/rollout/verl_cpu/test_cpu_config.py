"""The documented command line composes, and the engine overlays differ in what an engine is."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf

pytestmark = pytest.mark.usefixtures("imported_verl")

CONFIGS = Path(__file__).parents[3] / "configs"
ENGINES = ("cpu", "sglang", "sglang_cpu", "transformers")
GIVEN = ["data.train_files=rows.parquet", "actor_rollout_ref.model.path=model"]

ENGINE_KEYS = (
    "algorithm.rollout_correction.rollout_is",
    "actor_rollout_ref.actor.fsdp_config.",
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
    "actor_rollout_ref.actor.use_dynamic_bsz",
    "actor_rollout_ref.actor.use_torch_compile",
    "actor_rollout_ref.model.enable_gradient_checkpointing",
    "actor_rollout_ref.model.lora.merge",
    "actor_rollout_ref.model.override_config",
    "actor_rollout_ref.model.use_remove_padding",
    "actor_rollout_ref.ref.fsdp_config.",
    "actor_rollout_ref.rollout.agent.num_workers",
    "actor_rollout_ref.rollout.custom.mcp.sampling_seed_key",
    "actor_rollout_ref.rollout.dtype",
    "actor_rollout_ref.rollout.engine_kwargs.",
    "actor_rollout_ref.rollout.gpu_memory_utilization",
    "actor_rollout_ref.rollout.max_num_seqs",
    "actor_rollout_ref.rollout.name",
    "data.dataloader_num_workers",
    "ray_kwargs.ray_init.",
    "reward.num_workers",
    "trainer.device",
    "trainer.n_gpus_per_node",
    "trainer.v1.sampler.sampler_kwargs.poll_interval_s",
    "transfer_queue.backend.",
)


class VerlConfigs(SearchPathPlugin):
    """What `@hydra.main(config_path="config")` in verl.trainer.main_ppo does."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        search_path.append("main", "pkg://verl.trainer.config")


@pytest.fixture(scope="module", autouse=True)
def hydra_directory() -> Iterator[None]:
    Plugins.instance().register(VerlConfigs)
    with initialize_config_dir(str(CONFIGS), version_base=None):
        yield


def composed(engine: str, *overrides: str) -> DictConfig:
    return compose("mcp_grpo", overrides=[f"engine={engine}", *GIVEN, *overrides])


def leaves(config: Any, prefix: str = "") -> dict[str, Any]:
    """Every value by its dotted path; an empty mapping or a list is a value."""
    if not isinstance(config, dict) or not config:
        return {prefix.removesuffix("."): config}
    return {path: leaf for key, value in config.items() for path, leaf in leaves(value, f"{prefix}{key}.").items()}


@cache
def stated(engine: str) -> dict[str, Any]:
    """Values as the files state them: what follows another key through an interpolation does not count twice."""
    return leaves(OmegaConf.to_container(composed(engine), resolve=False))


@pytest.mark.parametrize("engine", ENGINES)
def test_an_overlay_gives_a_configuration_that_verl_accepts(engine: str) -> None:
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config
    from verl.workers.config import RolloutConfig

    config = composed(engine)
    validate_config(config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config))
    rollout = omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
    assert isinstance(rollout, RolloutConfig)
    assert rollout.multi_turn.max_assistant_turns == 15
    assert rollout.agent.default_agent_loop == "mcp_agent"


def test_the_overlays_differ_in_engine_keys_only() -> None:
    differing = different("cpu", "sglang")
    assert sorted(key for key in differing if not key.startswith(ENGINE_KEYS)) == []
    unused = [prefix for prefix in ENGINE_KEYS if not any(key.startswith(prefix) for key in differing)]
    assert unused == []


def test_sglang_without_a_gpu_differs_from_the_other_cpu_overlay_in_the_rollout_alone() -> None:
    differing = different("cpu", "sglang_cpu")
    assert {key for key in differing if not key.startswith("actor_rollout_ref.rollout.engine_kwargs.sglang")} == {
        "actor_rollout_ref.rollout.custom.mcp.sampling_seed_key",
        "actor_rollout_ref.rollout.enforce_eager",
        "actor_rollout_ref.rollout.free_cache_engine",
        "actor_rollout_ref.rollout.name",
        "algorithm.rollout_correction.rollout_is",
        "ray_kwargs.ray_init.runtime_env.py_executable",
    }


def test_our_engine_on_a_gpu_differs_from_the_cpu_overlay_in_where_things_are() -> None:
    assert different("cpu_135m", "transformers") == {
        "actor_rollout_ref.rollout.engine_kwargs.transformers_cpu.device",
        "ray_kwargs.ray_init.num_gpus",
        "ray_kwargs.ray_init.runtime_env.env_vars.VERL_USE_EXTERNAL_MODULES",
        "ray_kwargs.ray_init.runtime_env.py_executable",
        "trainer.device",
    }


def different(one: str, other: str) -> set[str]:
    left, right = stated(one), stated(other)
    return {key for key in left.keys() | right.keys() if left.get(key, ...) != right.get(key, ...)}


def test_every_key_of_ours_can_be_overridden_without_a_plus() -> None:
    section = "actor_rollout_ref.rollout.custom.mcp."
    ours = {key for key in stated("cpu") if key.startswith(section)} - {f"{section}environment"}
    changed = composed("cpu", *(f"{key}=changed" for key in ours)).actor_rollout_ref.rollout.custom.mcp
    del changed.environment
    assert set(leaves(OmegaConf.to_container(changed)).values()) == {"changed"}


def test_our_section_offers_every_setting_that_there_is() -> None:
    from mcp_rollout.rollout.verl.settings import Settings

    section = composed("cpu").actor_rollout_ref.rollout.custom.mcp
    assert set(section) == set(Settings.model_fields)


def test_the_bound_on_failures_reaches_the_replay_buffer() -> None:
    config = composed("cpu", "actor_rollout_ref.rollout.custom.mcp.max_failed_share=0.25")
    assert config.trainer.v1.sampler.sampler_kwargs.max_failed_share == 0.25


def test_what_the_user_must_give_has_no_default() -> None:
    config = compose("mcp_grpo", overrides=["engine=cpu"])
    assert (config.data.train_files, config.actor_rollout_ref.model.path) == (None, None)


def test_ray_arguments_hold_no_interpolation() -> None:
    """verl hands them to Ray without resolving them."""
    raw = {key: value for key, value in stated("cpu").items() if key.startswith("ray_kwargs.ray_init.")}
    assert raw and [key for key, value in raw.items() if "${" in str(value)] == []


def test_engine_options_are_read_strictly() -> None:
    from mcp_rollout.rollout.verl_cpu.server import ServerOptions

    kwargs = composed("cpu").actor_rollout_ref.rollout.engine_kwargs
    assert ServerOptions.parse(kwargs) == ServerOptions(engine_log=None)
    with pytest.raises(ValueError, match="engine_logs"):
        ServerOptions.parse({"transformers_cpu": {"engine_logs": "typo"}})
