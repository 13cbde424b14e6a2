"""Names that verl looks up late, and the modules that register them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf
from structlog.testing import capture_logs
from verl_config import composed

from mcp_rollout.gateway.errors import ConfigError

pytestmark = [pytest.mark.verl, pytest.mark.usefixtures("imported_verl")]

ESTIMATOR, MODULES = "algorithm.adv_estimator", "ray_kwargs.ray_init.runtime_env.env_vars.VERL_USE_EXTERNAL_MODULES"
OWN = """
from verl.trainer.ppo.core_algos import register_adv_est

@register_adv_est("estimator_of_a_module")
def estimator(**_):
    pass
"""


@pytest.fixture(autouse=True)
def registry_as_it_was() -> Iterator[None]:
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY

    yield
    ADV_ESTIMATOR_REGISTRY.pop("estimator_of_a_module", None)


@cache
def base() -> DictConfig:
    return composed(Path("model"))


def named(name: str, modules: str = "", key: str = ESTIMATOR) -> list[Any]:
    """The warnings about a name; raises what the check raises."""
    from mcp_rollout.rollout.verl.modules import check_names

    config = base().copy()
    OmegaConf.update(config, key, name)
    OmegaConf.update(config, MODULES, modules)
    with capture_logs() as logs:
        check_names(config)
    return logs


def test_verls_estimators_and_ours_are_known() -> None:
    from verl.trainer.ppo.core_algos import AdvantageEstimator

    names = [each.value for each in AdvantageEstimator]
    assert "reinforce_plus_plus" in names
    assert [named(name) for name in (*names, "tree_grpo", "step_grpo")] == [[]] * (len(names) + 2)


@pytest.mark.parametrize(
    ("key", "name", "said"),
    [
        (ESTIMATOR, "stepgrpo", ["unknown estimator 'stepgrpo'", "did you mean 'step_grpo'?"]),
        (ESTIMATOR, "q", ["unknown estimator 'q'", "known estimator names: gae, gdpo"]),
        ("actor_rollout_ref.actor.policy_loss.loss_mode", "gsop", ["unknown loss 'gsop'", "did you mean 'gspo'?"]),
        ("trainer.v1.trainer_mode", "mcp_colocate_asink", ["unknown mode", "did you mean 'mcp_colocate_async'"]),
    ],
)
def test_an_unknown_name_is_refused_with_a_suggestion(key: str, name: str, said: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        named(name, key=key)
    assert caught.value.key == key and [part for part in said if part not in str(caught.value)] == []


def test_an_estimator_of_a_module_that_verls_processes_import_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "module_with_an_estimator.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError):
        named("estimator_of_a_module")
    assert named("estimator_of_a_module", "module_with_an_estimator") == []


def test_an_estimator_of_a_module_that_is_not_on_this_machine_is_not_refused() -> None:
    (warning,) = named("estimator_of_a_module", "no_such_module_here")
    assert warning["log_level"] == "warning" and warning["modules"] == ["no_such_module_here"]
