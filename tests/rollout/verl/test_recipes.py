"""The recipes: every key exists in verl, every section is accepted by verl's own classes, the sizes agree."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

pytestmark = pytest.mark.usefixtures("imported_verl")

CONFIGS = Path(__file__).parents[3] / "configs"
RECIPES = sorted(path.stem for path in (CONFIGS / "recipe").glob("*.yaml"))
SIZES = [name for name in RECIPES if "qwen3" in name]
ALGORITHMS = [name for name in RECIPES if name != "async" and name not in SIZES]
BASE = ["hydra.searchpath=[pkg://verl.trainer.config]", "data.train_files=rows.parquet"]


@cache
def composed(*overrides: str) -> DictConfig:
    with initialize_config_dir(str(CONFIGS), version_base=None):
        return compose("mcp_grpo", overrides=[*BASE, *overrides])


def keys(config: Any, prefix: str = "") -> set[str]:
    # What is below these is validated in other tests, and by torch's optimizer.
    if not isinstance(config, dict) or not config or prefix.endswith((".mcp.environment", "_optimizer_config")):
        return {prefix}
    return {path for key, value in config.items() for path in keys(value, f"{prefix}.{key}")}


def test_there_is_one_for_one_gpu_and_one_for_eight() -> None:
    gpus = {name: composed(f"recipe={name}").trainer.n_gpus_per_node for name in SIZES}
    assert gpus == {"qwen3_1gpu": 1, "qwen3_8gpu": 8, "bfcl_qwen3_1gpu": 1, "bfcl_qwen3_8gpu": 8}


@pytest.mark.parametrize("name", SIZES)
def test_our_section_is_accepted_and_its_weights_are_those_of_the_environment(name: str) -> None:
    from mcp_rollout.rollout.environment.config import load_environment
    from mcp_rollout.rollout.verl.settings import Settings

    environment = load_environment("bfcl" if name.startswith("bfcl") else "retail", CONFIGS / "environments")
    applied = Settings.of(composed(f"recipe={name}")).apply(environment)
    expected = {"score": 0.5, "user_turns": 0.5} if name.startswith("bfcl") else {}
    assert applied.reward.weights == expected


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_says_nothing_that_verl_would_not_read(name: str) -> None:
    """A misspelt key would be added in silence: a configuration file, unlike the command line, may add keys."""
    known, ours = (keys(OmegaConf.to_container(composed(*recipe))) for recipe in ([], [f"recipe={name}"]))
    assert sorted(ours - known) == []


@pytest.mark.parametrize("name", RECIPES)
def test_every_section_is_accepted_by_verls_own_class(name: str) -> None:
    from verl.trainer.config import AlgoConfig, CheckpointConfig
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config
    from verl.workers.config import FSDPActorConfig, FSDPOptimizerConfig, RolloutConfig

    config = composed(f"recipe={name}")
    validate_config(config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config))
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    expected = {
        AlgoConfig: config.algorithm,
        FSDPActorConfig: actor,
        FSDPOptimizerConfig: actor.optim,
        CheckpointConfig: actor.checkpoint,
        RolloutConfig: rollout,
    }
    for kind, section in expected.items():
        assert isinstance(omega_conf_to_dataclass(section), kind)


@pytest.mark.parametrize("name", SIZES)
def test_a_whole_trajectory_fits_everywhere(name: str) -> None:
    config = composed(f"recipe={name}")
    rollout, actor = config.actor_rollout_ref.rollout, config.actor_rollout_ref.actor
    whole = config.data.max_prompt_length + config.data.max_response_length
    assert rollout.max_model_len == whole
    assert actor.ppo_max_token_len_per_gpu >= whole
    assert config.data.train_batch_size * rollout.n <= rollout.custom.mcp.environment.max_sessions
    assert config.trainer.n_gpus_per_node % rollout.tensor_model_parallel_size == 0
    assert config.data.train_batch_size * rollout.n % config.trainer.n_gpus_per_node == 0


@pytest.mark.parametrize("name", SIZES)
def test_a_long_thought_is_closed_with_room_for_a_call_in_the_same_turn(name: str) -> None:
    """A turn that its length cuts in mid-thought ends the trajectory."""
    ours = composed(f"recipe={name}").actor_rollout_ref.rollout.custom.mcp.environment
    assert ours.limits.tokens_per_turn - ours.thinking.tokens_per_turn >= 512


def test_the_asynchronous_recipe_goes_with_the_others() -> None:
    together, alone = composed("recipe=[qwen3_1gpu,async]"), composed("recipe=qwen3_1gpu")
    assert together.trainer.v1.trainer_mode == "mcp_colocate_async"
    assert together.algorithm.rollout_correction.rollout_is == "token"
    assert together.data == alone.data and together.actor_rollout_ref.rollout == alone.actor_rollout_ref.rollout


def test_algorithms_go_with_sizes_and_what_follows_them_on_the_command_line_counts() -> None:
    changed = ("actor_rollout_ref.actor.clip_ratio_high=0.3", "data.max_response_length=99")
    config = composed("engine=cpu", "recipe=[qwen3_1gpu,dr_grpo,tis]", *changed)
    actor = config.actor_rollout_ref.actor
    assert config.trainer.n_gpus_per_node == 1 and config.data.max_prompt_length == 4096
    assert config.algorithm.rollout_correction.rollout_is == "token"
    assert (actor.clip_ratio_high, actor.loss_scale_factor) == (0.3, 99)


def test_each_algorithm_is_what_its_paper_says_in_verls_keys() -> None:
    def chosen(name: str) -> tuple[object, ...]:
        config = composed(*([f"recipe={name}"] if name else []))
        actor, algorithm = config.actor_rollout_ref.actor, config.algorithm
        return (
            actor.policy_loss.loss_mode,
            actor.loss_agg_mode,
            (actor.clip_ratio_low, actor.clip_ratio_high),
            algorithm.norm_adv_by_std_in_grpo,
            actor.use_kl_loss or algorithm.use_kl_in_reward,
            config.data.train_batch_size // actor.ppo_mini_batch_size * actor.ppo_epochs,
        )

    assert {name: chosen(name) for name in ("", *ALGORITHMS)} == {
        "": ("vanilla", "token-mean", (0.2, 0.2), True, False, 1),
        "cispo": ("cispo", "token-mean", (10, 0.2), True, False, 4),
        "dapo": ("vanilla", "token-mean", (0.2, 0.28), True, False, 4),
        "dr_grpo": ("vanilla", "seq-mean-token-sum-norm", (0.2, 0.2), False, False, 1),
        "gspo": ("gspo", "seq-mean-token-mean", (3e-4, 4e-4), True, False, 4),
        "tis": ("vanilla", "token-mean", (0.2, 0.2), True, False, 1),
        "warm_start": ("vanilla", "token-mean", (0.2, 0.2), True, True, 1),
    }
    assert composed("recipe=dapo").trainer.v1.sampler.sampler_kwargs.filter_groups.enable


ENGINES = sorted(path.stem for path in (CONFIGS / "engine").glob("*.yaml"))


def test_importance_is_corrected_where_another_program_samples() -> None:
    def correction(*overrides: str) -> tuple[object, ...]:
        config = composed(*overrides)
        chosen = config.algorithm.rollout_correction
        assert config.actor_rollout_ref.rollout.calculate_log_probs
        return chosen.rollout_is, chosen.rollout_is_threshold

    on, off = ("token", 2.0), (None, 2.0)
    engines = {"sglang": on, "sglang_cpu": on, "vllm": on, "cpu": off, "cpu_135m": off, "transformers": off}
    assert {name: correction(f"engine={name}") for name in ENGINES} == engines
    assert correction("algorithm.rollout_correction.rollout_is=null") == off


@pytest.mark.parametrize("override", [*(f"recipe={name}" for name in RECIPES), *(f"engine={name}" for name in ENGINES)])
def test_the_reference_computes_as_the_actor_does_and_the_engine_samples_in_that_type(override: str) -> None:
    """verl's FSDP engine takes bfloat16 where `mixed_precision` is missing."""
    roles = composed(override).actor_rollout_ref
    actor, ref = (OmegaConf.to_container(roles[role].fsdp_config, resolve=True) for role in ("actor", "ref"))
    for key in ("model_dtype", "mixed_precision", "dtype"):
        assert actor.get(key) == ref.get(key)
    computes = (actor.get("mixed_precision") or {}).get("param_dtype", "bf16")
    assert {"fp32": "float32", "bf16": "bfloat16"}[computes] == roles.rollout.dtype


def test_the_reference_follows_an_actor_that_computes_in_another_type() -> None:
    keys = ("model_dtype=fp16", "+mixed_precision.param_dtype=fp16")
    changed = [
        f"{'+' * key.startswith('+')}actor_rollout_ref.actor.fsdp_config.{key.removeprefix('+')}" for key in keys
    ]
    ref = composed("engine=vllm", *changed).actor_rollout_ref.ref.fsdp_config
    assert (ref.model_dtype, ref.mixed_precision.param_dtype) == ("fp16", "fp16")
