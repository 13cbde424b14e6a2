"""What the preflight says about sampling and updates, before Ray starts; verl finds it after minutes, or never."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf
from structlog.testing import capture_logs
from verl_config import composed

from gateway.errors import ConfigError
from rollout.verl_cpu.tiny_model import make_tiny_model

pytestmark = [pytest.mark.verl, pytest.mark.usefixtures("imported_verl")]

ACTOR, ROLLOUT, LOSS = (f"actor_rollout_ref.{key}" for key in ("actor", "rollout", "actor.policy_loss"))
ESTIMATOR, MODULES = "algorithm.adv_estimator", "ray_kwargs.ray_init.runtime_env.env_vars.VERL_USE_EXTERNAL_MODULES"
OWN = """
from verl.trainer.ppo.core_algos import register_adv_est

@register_adv_est("estimator_of_a_module")
def estimator(**_):
    pass
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), hidden=32, layers=1)


@pytest.fixture(autouse=True)
def registry_as_it_was() -> Iterator[None]:
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY

    yield
    ADV_ESTIMATOR_REGISTRY.pop("estimator_of_a_module", None)


@cache
def base(model: Path, engine: str) -> DictConfig:
    return composed(model, f"engine={engine}")


def refused(model: Path, changed: dict[str, object], engine: str = "cpu") -> str:
    """The error message; "" if nothing is refused."""
    from rollout.verl.trainer_checks import check_groups
    from rollout.verl.update_checks import check_names, check_numbers, check_update

    config = base(model, engine).copy()
    for key, value in changed.items():
        OmegaConf.update(config, key, value)
    try:
        check_numbers(config)
        check_names(config)
        check_groups(config, ())
        check_update(config)
    except ConfigError as error:
        return str(error)
    return ""


def named(model: Path, estimator: str, modules: str = "") -> list[Any]:
    """The warnings about the name of an estimator; raises what the check raises."""
    from rollout.verl.update_checks import check_names

    config = base(model, "cpu").copy()
    OmegaConf.update(config, ESTIMATOR, estimator)
    OmegaConf.update(config, MODULES, modules)
    with capture_logs() as logs:
        check_names(config)
    return logs


def test_verls_estimators_and_ours_are_known(model: Path) -> None:
    from verl.trainer.ppo.core_algos import AdvantageEstimator

    names = [each.value for each in AdvantageEstimator]
    assert "reinforce_plus_plus" in names
    assert [named(model, name) for name in (*names, "tree_grpo", "step_grpo")] == [[]] * (len(names) + 2)


@pytest.mark.parametrize(
    ("estimator", "suggested"),
    [("stepgrpo", "did you mean 'step_grpo'?"), ("q", "known estimator names: gae, gdpo")],
)
def test_an_unknown_estimator_is_refused_with_a_suggestion(model: Path, estimator: str, suggested: str) -> None:
    with pytest.raises(ConfigError) as caught:
        named(model, estimator)
    assert caught.value.key == ESTIMATOR
    assert f"unknown estimator {estimator!r}" in str(caught.value) and suggested in caught.value.remedy


def test_an_estimator_of_a_module_that_verls_processes_import_is_known(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "module_with_an_estimator.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError):
        named(model, "estimator_of_a_module")
    assert named(model, "estimator_of_a_module", "module_with_an_estimator") == []


def test_an_estimator_of_a_module_that_is_not_on_this_machine_is_not_refused(model: Path) -> None:
    (warning,) = named(model, "estimator_of_a_module", "no_such_module_here")
    assert warning["log_level"] == "warning" and warning["modules"] == ["no_such_module_here"]


@pytest.mark.parametrize("engine", ["cpu", "sglang", "vllm"])
def test_a_divergence_from_a_reference_a_critic_and_an_adapter_need_no_more_keys(model: Path, engine: str) -> None:
    asked: dict[str, object] = {f"{ACTOR}.use_kl_loss": True}
    if "cpu" not in engine:
        asked |= {ESTIMATOR: "gae", "critic.enable": True}
    if engine == "sglang":
        asked |= {f"{ACTOR}.use_dynamic_bsz": False, f"{ACTOR}.ppo_micro_batch_size_per_gpu": 2}
    if engine != "vllm":  # verl asks for its version
        asked["actor_rollout_ref.model.lora_rank"] = 8
    assert refused(model, asked, engine) == ""
    if engine == "sglang":
        assert "critic.model.path: " in refused(model, asked | {"critic.model.path": "/nowhere"}, engine)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({f"{ROLLOUT}.temperature": 0}, f"{ROLLOUT}.temperature: is 0 (set it to a number from 0.01 to inf)"),
        ({f"{ROLLOUT}.temperature": None}, "is None"),
        ({f"{ROLLOUT}.top_p": 1.5}, "from 0.01 to 1"),
        ({f"{ROLLOUT}.val_kwargs.temperature": -1}, "val_kwargs.temperature: is -1"),
        ({f"{ROLLOUT}.n": 1}, "rollout.n: is 1, and grpo compares the trajectories of a group"),
        ({f"{ROLLOUT}.n": 1, ESTIMATOR: "rloo"}, "rollout.n: is 1, and rloo compares"),
        ({f"{ROLLOUT}.n": 1, ESTIMATOR: "step_grpo"}, "rollout.n: is 1, and step_grpo compares"),
        ({f"{ROLLOUT}.mode": "sync"}, "Rollout mode 'sync' has been removed"),
        ({f"{ACTOR}.clip_ratio_high": -0.2}, "clip_ratio_high: is -0.2"),
        ({f"{ACTOR}.clip_ratio_c": 0.5}, f"{LOSS}.loss_mode: verl refuses vanilla: AssertionError: The lower bound"),
        ({f"{ACTOR}.entropy_coeff": float("nan")}, "entropy_coeff: is nan"),
        ({f"{ACTOR}.kl_loss_type": "nonsense"}, f"{ACTOR}.kl_loss_type: verl refuses nonsense"),
        ({f"{ACTOR}.loss_agg_mode": "nonsense"}, f"{ACTOR}.loss_agg_mode: verl refuses nonsense"),
        ({f"{ACTOR}.strategy": "nonsense"}, "strategy nonsense not supported"),
        ({f"{ACTOR}.optim.lr_scheduler_type": "nonsense"}, 'assert self.lr_scheduler_type in ["constant", "cosine"]'),
        ({f"{ACTOR}.ppo_micro_batch_size_per_gpu": None}, "Please set at least one of 'actor.ppo_micro_batch_size'"),
        ({f"{ACTOR}.ppo_mini_batch_size": 64}, "train_batch_size (32) must be >= actor.ppo_mini_batch_size (64)"),
        ({f"{ACTOR}.ppo_mini_batch_size": 3, f"{ROLLOUT}.n": 2}, "6 samples do not divide into micro-batches of 4"),
        ({f"{ACTOR}.use_dynamic_bsz": True, f"{ACTOR}.ppo_max_token_len_per_gpu": 4096}, "(set it to 12288)"),
        ({f"{LOSS}.loss_mode": "nonsense"}, f"{LOSS}.loss_mode: unknown loss 'nonsense'"),
        ({f"{LOSS}.loss_mode": "gspoo"}, "did you mean 'gspo'?"),
        ({"algorithm.gamma": 1.5}, "algorithm.gamma: is 1.5 (set it to a number from 0 to 1)"),
        ({f"{LOSS}.loss_mode": "dro"}, "policy_loss.dro_beta must be a positive value"),
        ({"algorithm.kl_penalty": "nonsense"}, "algorithm.kl_penalty: verl refuses nonsense"),
        ({"algorithm.kl_ctrl.type": "nonsense"}, "algorithm.kl_ctrl: verl refuses it: NotImplementedError"),
        ({ESTIMATOR: "gae"}, "algorithm.adv_estimator: is gae, which needs a critic"),
        ({ESTIMATOR: "gae", "critic.enable": True}, "critic.enable: is True, and verl's critic needs"),
        ({ESTIMATOR: "remax"}, "missing 1 required positional argument: 'reward_baselines'"),
        ({"algorithm.rollout_correction.rollout_is": "nonsense"}, "Must be one of {"),
        (
            {
                "trainer.v1.trainer_mode": "sync",
                "trainer.n_gpus_per_node": 8,
                "data.train_batch_size": 5,
                f"{ROLLOUT}.n": 2,
            },
            "10 samples do not divide into micro-batches of 4 on each of 8 ranks",
        ),
    ],
)
def test_what_verl_would_end_with_later_is_said_in_a_sentence(
    model: Path, changed: dict[str, object], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    message = refused(model, changed)
    assert said in message, message
    assert capsys.readouterr().out == ""


def test_other_losses_and_single_trajectories_without_groups_pass(model: Path) -> None:
    for name in ("dro", "bypass_mode"):
        assert refused(model, {f"{LOSS}.loss_mode": name, f"{LOSS}.dro_beta": 0.1}) == ""
    assert refused(model, {f"{ROLLOUT}.n": 1, ESTIMATOR: "reinforce_plus_plus"}) == ""


def test_a_run_that_only_validates_may_sample_greedily(model: Path) -> None:
    assert refused(model, {"trainer.val_only": True, f"{ROLLOUT}.temperature": 0, f"{ROLLOUT}.n": 1}) == ""


def test_a_model_that_is_nowhere_is_said_after_one_request() -> None:
    """transformers asks a hub that does not answer for more than a minute."""
    from rollout.tokens.verl_builder import check_model

    for path in ("outputs/no_model", "/no/model", "not a name"):
        with pytest.raises(ConfigError, match=r"the hub does not give it|no such directory"):
            check_model(path, key="actor_rollout_ref.model.path")
