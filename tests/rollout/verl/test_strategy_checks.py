"""What the preflight says about a strategy: where chains take its place, and what could not be trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf
from structlog.testing import capture_logs

from gateway.errors import ConfigError, Faults, faults_of, raise_all
from rollout.environment.config import load_environment
from rollout.environment.sections import Strategy, StrategyConfig

pytestmark = [pytest.mark.verl, pytest.mark.usefixtures("imported_verl")]

ROOT = Path(__file__).parents[3]
DEPOT, GUESS = ROOT / "configs" / "environments" / "depot.yaml", ROOT / "examples" / "guess" / "guess.yaml"
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


def checked(*overrides: str, environments: tuple[Path, ...] = (DEPOT,)) -> list[dict[str, Any]]:
    """What is logged; raises what the checks raise, all of it."""
    from rollout.verl.settings import Settings
    from rollout.verl.strategy_checks import check_strategy
    from rollout.verl.trainer_checks import check_trainer

    config = composed(*overrides)
    settings = Settings.of(config)
    faults = Faults()
    with capture_logs() as logs:
        with faults.collected():
            check_trainer(config, settings)
        for file in environments:
            with faults.collected():
                check_strategy(settings.apply(load_environment(file)), config, settings)
    raise_all(faults)
    return [dict(entry) for entry in logs]


def test_chains_are_the_default_and_nothing_is_said() -> None:
    assert checked() == []


@pytest.mark.parametrize("strategy", ["tree", "single_turn"])
def test_v0_rolls_out_chains_and_it_is_said(strategy: str) -> None:
    assert checked(f"{STRATEGY}.use={strategy}") == []
    (entry,) = checked(f"{STRATEGY}.use={strategy}", "trainer.use_v1=False", "trainer.v1.trainer_mode=sync")
    assert "v0 trainer rolls out chains" in entry["event"] and entry["log_level"] == "warning"


@pytest.mark.parametrize(
    ("length", "options", "is_said"),
    [
        (2500, ["tokens_per_turn=452"], False),
        (2500, ["tokens_per_turn=453"], True),
        (2500, ["tokens_per_turn=453", "strategy.single_turn.history_tokens=2047"], False),
        (2048, [], True),
        (2049, [], False),
    ],
)
def test_a_history_that_leaves_no_room_for_a_turn_is_said(length: int, options: list[str], is_said: bool) -> None:
    settings = STRATEGY.removesuffix(".strategy")
    overrides = [f"{STRATEGY}.use=single_turn", f"data.max_response_length={length}"]
    # guess.yaml does not bound the tokens of a turn.
    logs = checked(*overrides, *(f"{settings}.{option}" for option in options), environments=(GUESS,))
    assert [(entry["log_level"], entry["key"]) for entry in logs] == [("warning", "data.max_response_length")] * is_said


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
            "ppo_mini_batch_size: is below the rows of a batch",
        ),
        ((f"{STRATEGY}.use=single_turn", "critic.enable=True"), "critic.enable: single_turn makes"),
        ((f"{STRATEGY}.use=single_turn", "algorithm.adv_estimator=rloo"), "rloo counts each sample"),
        ((f"{STRATEGY}.use=compact", "trainer.use_v1=False"), "strategy.use: compact makes several training samples"),
        ((f"{STRATEGY}.use=compact", "algorithm.adv_estimator=rloo"), "rloo counts each sample, and compact makes"),
        ((f"{STRATEGY}.use=compact", "data.max_response_length=7000"), f"{STRATEGY}.compact.at_tokens: is 6144"),
        (
            (f"{STRATEGY}.use=compact", f"{STRATEGY}.compact.at_tokens=900", "data.max_response_length=1500"),
            "a response of 1500 tokens (make it at most 344, or ",
        ),
        (
            (f"{STRATEGY}.use=tree", f"{STRATEGY}.compact.keep_turns=1"),
            "strategy.compact: is given beside tree",
        ),
        (("algorithm.adv_estimator=tree_grpo", "trainer.v1.trainer_mode=sync"), "tree_grpo needs columns"),
        ((f"{STRATEGY}.tree.roots=0",), "strategy.tree.roots"),
        ((f"{STRATEGY}.use=forest",), "strategy.use"),
    ],
)
def test_what_could_not_be_trained_is_refused_with_key_and_remedy(overrides: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        checked(*overrides)
    assert said in str(caught.value)


def test_compacted_contexts_that_fit_are_trained_and_validated() -> None:
    fitting = (f"{STRATEGY}.compact.at_tokens=4000", "trainer.test_freq=5")
    assert checked(f"{STRATEGY}.use=compact", *fitting) == []
    environment = load_environment(DEPOT).model_copy(update={"strategy": StrategyConfig(use=Strategy.COMPACT)})
    assert environment.as_chain.strategy.use is Strategy.COMPACT


def test_all_that_keeps_single_turns_from_being_trained_is_said_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        checked(
            f"{STRATEGY}.use=single_turn",
            "trainer.v1.trainer_mode=sync",
            "actor_rollout_ref.actor.ppo_mini_batch_size=16",
            "algorithm.adv_estimator=rloo",
            "critic.enable=True",
        )
    keys = [fault.key for fault in faults_of(caught.value)]
    mini_batch = "actor_rollout_ref.actor.ppo_mini_batch_size"
    assert keys == ["trainer.v1.trainer_mode", mini_batch, "algorithm.adv_estimator", "critic.enable"]


def test_an_unknown_estimator_is_left_to_the_check_of_estimators() -> None:
    assert checked(f"{STRATEGY}.use=single_turn", "algorithm.adv_estimator=stepgrpo") == []


PROGRAM = """
servers: {echo: {command: '${python}'}}
agent: {use: "rollout.programs.program:Function", with: {use: "told:plain"}}
"""
DROPS = "actor_rollout_ref.rollout.custom.mcp.thinking.context=drop_previous"
MINI_BATCH = "actor_rollout_ref.actor.ppo_mini_batch_size"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """An environment whose trajectories may be several samples, since a program plays them."""
    (tmp_path / "program.yaml").write_text(PROGRAM)
    return tmp_path / "program.yaml"


def test_v0_takes_no_trajectory_that_may_be_several_samples(program: Path) -> None:
    v0 = ("trainer.use_v1=False", DROPS)
    for file, keys in ((program, ["thinking.context", "agent.use"]), (DEPOT, ["thinking.context"])):
        with pytest.raises(ConfigError, match="verl's v0 trainer takes one") as caught:
            checked(*v0, environments=(file,))
        assert [(fault.file, fault.key) for fault in faults_of(caught.value)] == [(str(file), key) for key in keys]
    # Without a further user message, nothing is dropped.
    assert not load_environment(GUESS).has_user_messages and checked(*v0, environments=(GUESS,)) == []


@pytest.mark.parametrize("context", ["keep", "drop_previous"])
def test_what_counts_a_trajectory_of_several_samples_more_than_once_is_warned_of(program: Path, context: str) -> None:
    environment, given = (program, ()) if context == "keep" else (DEPOT, (DROPS,))
    assert checked(*given, environments=(environment,)) == []
    logs = checked(*given, "algorithm.adv_estimator=rloo", "critic.enable=True", environments=(environment,))
    assert [(entry["log_level"], entry["key"]) for entry in logs] == [
        ("warning", "algorithm.adv_estimator"),
        ("warning", "critic.enable"),
    ]


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        ([], None),
        ([f"{MINI_BATCH}=1"], MINI_BATCH),
        (["trainer.v1.trainer_mode=sync"], "trainer.v1.trainer_mode"),
    ],
)
def test_more_than_one_optimizer_step_is_warned_of_where_a_program_plays(
    program: Path, overrides: list[str], key: str | None
) -> None:
    logs = checked(*overrides, environments=(program,))
    assert [entry["key"] for entry in logs] == ([] if key is None else [key])
    assert all("a program may make several" in entry["event"] for entry in logs)


OWN = "servers: {echo: {command: '${python}'}}\nstrategy: {use: tree, tree: {roots: 9}}\n"


def test_a_trees_options_are_named_where_they_were_given(tmp_path: Path) -> None:
    """Once, where the run's configuration has them, however many environments it has."""
    (tmp_path / "own.yaml").write_text(OWN)

    def named(*overrides: str, environments: tuple[Path, ...]) -> list[tuple[str | None, str | None]]:
        with pytest.raises(ConfigError) as caught:
            checked("actor_rollout_ref.rollout.n=2", *overrides, environments=environments)
        return [(fault.file and str(fault.file), fault.key) for fault in faults_of(caught.value)]

    used, roots, own = f"{STRATEGY}.use=tree", f"{STRATEGY}.tree.roots=4", tmp_path / "own.yaml"
    of_run, of_file = (None, f"{STRATEGY}.tree.roots"), (str(own), "strategy.tree.roots")
    assert named(used, roots, environments=(DEPOT, GUESS)) == [of_run]
    assert named(used, environments=(DEPOT, GUESS)) == [of_run]  # the default, 2, of a strategy that the run chose
    assert named(environments=(own,)) == [of_file]
    assert named(used, environments=(own,)) == [of_file]
    assert named(roots, environments=(own,)) == [of_run]
    entropy = (f"{STRATEGY}.tree.branch_at=entropy", "actor_rollout_ref.rollout.calculate_log_probs=False")
    assert named(*entropy, environments=(own,)) == [(None, f"{STRATEGY}.tree.branch_at"), of_file]


def test_a_run_may_have_options_of_a_strategy_that_it_does_not_use() -> None:
    assert checked(f"{STRATEGY}.use=chain", f"{STRATEGY}.tree.roots=99") == []


def test_the_settings_of_a_run_change_the_environments_strategy() -> None:
    from rollout.verl.settings import Settings

    given = (f"{STRATEGY}.use=tree", f"{STRATEGY}.tree.branch_at=entropy")
    settings = Settings.of(composed(*given, f"{STRATEGY}.single_turn.observations.max_tokens=32"))
    strategy = settings.apply(load_environment(DEPOT)).strategy
    assert (strategy.use, strategy.tree.branch_at, strategy.tree.roots) == ("tree", "entropy", 2)
    assert strategy.single_turn.observations.max_tokens == 32 and strategy.single_turn.history_tokens == 2048
