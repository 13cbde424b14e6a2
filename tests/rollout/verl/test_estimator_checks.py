"""What the preflight says about `algorithm.adv_estimator`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf
from structlog.testing import capture_logs

from gateway.errors import ConfigError
from rollout.environment.config import Environment

pytestmark = [pytest.mark.verl, pytest.mark.usefixtures("imported_verl")]

OWN = """
from verl.trainer.ppo.core_algos import register_adv_est

@register_adv_est("estimator_of_a_module")
def estimator(**_):
    pass
"""


@pytest.fixture(autouse=True)
def registry_as_it_was() -> Iterator[None]:
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY

    before = dict(ADV_ESTIMATOR_REGISTRY)
    yield
    ADV_ESTIMATOR_REGISTRY.clear()
    ADV_ESTIMATOR_REGISTRY.update(before)


def configured(estimator: str, *, modules: str = "", gamma: float = 1.0) -> DictConfig:
    variables = {"VERL_USE_EXTERNAL_MODULES": modules}
    return OmegaConf.create(
        {
            "algorithm": {"adv_estimator": estimator, "gamma": gamma},
            "ray_kwargs": {"ray_init": {"runtime_env": {"env_vars": variables}}},
        }
    )


def checked(estimator: str, modules: str = "") -> list[Any]:
    """The warnings; raises what the check raises."""
    from rollout.verl.strategy_checks import check_estimator

    with capture_logs() as logs:
        check_estimator(configured(estimator, modules=modules))
    return logs


def test_verls_estimators_and_ours_are_known() -> None:
    from verl.trainer.ppo.core_algos import AdvantageEstimator

    names = [each.value for each in AdvantageEstimator]
    assert "reinforce_plus_plus" in names
    assert [checked(name) for name in (*names, "tree_grpo", "step_grpo")] == [[]] * (len(names) + 2)


@pytest.mark.parametrize(
    ("estimator", "suggested"),
    [("stepgrpo", "did you mean 'step_grpo'?"), ("rlo", "did you mean 'rloo'?"), ("q", "known estimators: gae, gdpo")],
)
def test_an_unknown_estimator_is_refused_with_a_suggestion(estimator: str, suggested: str) -> None:
    with pytest.raises(ConfigError) as caught:
        checked(estimator)
    assert caught.value.key == "algorithm.adv_estimator"
    assert f"unknown estimator {estimator!r}" in str(caught.value) and suggested in caught.value.remedy


def test_an_estimator_of_a_module_that_verls_processes_import_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "module_with_an_estimator.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError):
        checked("estimator_of_a_module")
    assert checked("estimator_of_a_module", "module_with_an_estimator") == []


def test_an_estimator_of_a_module_that_is_not_on_this_machine_is_not_refused() -> None:
    (warning,) = checked("estimator_of_a_module", "no_such_module_here")
    assert warning["log_level"] == "warning" and warning["modules"] == ["no_such_module_here"]


@pytest.mark.parametrize(
    ("estimator", "gamma", "strategies", "key"),
    [
        ("tree_grpo", 1.0, ["chain", "single_turn"], "algorithm.adv_estimator"),
        ("tree_grpo", 1.0, ["chain", "tree"], None),
        ("tree_grpo", 1.5, ["tree"], None),
        ("grpo", 1.5, ["chain"], None),
        ("step_grpo", 1.0, ["chain"], None),
        ("step_grpo", 1.5, ["chain"], "algorithm.gamma"),
    ],
)
def test_an_estimator_that_cannot_do_what_it_is_for_is_warned_of(
    estimator: str, gamma: float, strategies: list[str], key: str | None
) -> None:
    from rollout.verl.strategy_checks import warn_of_useless_estimator

    servers = {"echo": {"command": "echo"}}
    environments = [
        Environment.model_validate({"name": name, "servers": servers, "strategy": name}) for name in strategies
    ]
    with capture_logs() as logs:
        warn_of_useless_estimator(environments, configured(estimator, gamma=gamma))
    assert [(entry["log_level"], entry["key"]) for entry in logs] == ([("warning", key)] if key else [])
