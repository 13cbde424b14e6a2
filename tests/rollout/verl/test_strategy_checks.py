"""What the preflight says about a strategy: where chains take its place, and what could not be trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf
from structlog.testing import capture_logs

from gateway.errors import ConfigError
from rollout.environment.config import load_environment

pytestmark = [pytest.mark.verl, pytest.mark.usefixtures("imported_verl")]

ROOT = Path(__file__).parents[3]
STRATEGY = "actor_rollout_ref.rollout.custom.mcp.strategy"


def composed(*overrides: str) -> DictConfig:
    with initialize_config_dir(str(ROOT / "configs"), version_base=None):
        config = compose(
            "mcp_grpo",
            overrides=[
                "hydra.searchpath=[pkg://verl.trainer.config]",
                "engine=cpu",
                "data.train_files=rows.parquet",
                "actor_rollout_ref.model.path=model",
                f"actor_rollout_ref.rollout.custom.mcp.environments_dir={ROOT / 'configs' / 'environments'}",
                *overrides,
            ],
        )
    return OmegaConf.create(OmegaConf.to_container(config))


def checked(*overrides: str) -> list[dict[str, Any]]:
    """What is logged; raises what the checks raise."""
    from rollout.verl.settings import Settings
    from rollout.verl.strategy_checks import check_strategy
    from rollout.verl.trainer_checks import check_trainer

    config = composed(*overrides)
    settings = Settings.of(config)
    with capture_logs() as logs:
        check_trainer(config, settings)
        check_strategy(settings.apply(load_environment(ROOT / "configs" / "environments" / "depot.yaml")), config)
    return [dict(entry) for entry in logs]


def test_chains_are_the_default_and_nothing_is_said() -> None:
    assert checked() == []


@pytest.mark.parametrize("strategy", ["tree", "single_turn"])
def test_validation_and_v0_roll_out_chains_and_it_is_said(strategy: str) -> None:
    (entry,) = checked(f"{STRATEGY}.use={strategy}")
    assert entry["event"] == "validation rolls out chains" and entry["strategy"] == strategy
    (entry,) = checked(f"{STRATEGY}.use={strategy}", "trainer.use_v1=False", "trainer.v1.trainer_mode=sync")
    assert "v0 trainer rolls out chains" in entry["event"] and entry["log_level"] == "warning"


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ((f"{STRATEGY}.use=tree", f"{STRATEGY}.tree.roots=8"), "strategy.tree.roots: is 8, and a group has 8 leaves"),
        (
            (
                f"{STRATEGY}.use=tree",
                f"{STRATEGY}.tree.branch_at=entropy",
                "actor_rollout_ref.rollout.calculate_log_probs=False",
            ),
            "strategy.tree.branch_at: entropy needs",
        ),
        ((f"{STRATEGY}.use=single_turn", "trainer.v1.trainer_mode=sync"), "trainer.v1.trainer_mode: single_turn makes"),
        (
            (f"{STRATEGY}.use=single_turn", "actor_rollout_ref.actor.ppo_mini_batch_size=16"),
            "ppo_mini_batch_size: is below data.train_batch_size",
        ),
        ((f"{STRATEGY}.use=single_turn", "critic.enable=True"), "the critic's steps are not bounded"),
        ((f"{STRATEGY}.use=single_turn", "algorithm.adv_estimator=rloo"), "rloo counts each sample"),
        (("algorithm.adv_estimator=tree_grpo", "trainer.v1.trainer_mode=sync"), "tree_grpo needs columns"),
        ((f"{STRATEGY}.tree.roots=0",), "strategy.tree.roots"),
        ((f"{STRATEGY}.use=forest",), "strategy.use"),
    ],
)
def test_what_could_not_be_trained_is_refused_with_key_and_remedy(overrides: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        checked(*overrides)
    assert said in str(caught.value)


def test_the_settings_of_a_run_change_the_environments_strategy() -> None:
    from rollout.verl.settings import Settings

    given = (f"{STRATEGY}.use=tree", f"{STRATEGY}.tree.branch_at=entropy")
    settings = Settings.of(composed(*given, f"{STRATEGY}.single_turn.observations.max_tokens=32"))
    strategy = settings.apply(load_environment(ROOT / "configs" / "environments" / "depot.yaml")).strategy
    assert (strategy.use, strategy.tree.branch_at, strategy.tree.roots) == ("tree", "entropy", 2)
    assert strategy.single_turn.observations.max_tokens == 32 and strategy.single_turn.history_tokens == 2048
