"""Checks of an environment's strategy and of `algorithm.adv_estimator` against verl's configuration."""

from __future__ import annotations

from collections.abc import Iterator

import structlog
from omegaconf import DictConfig
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY

from gateway.errors import ConfigError, Faults, raise_all
from rollout.environment.config import Environment
from rollout.environment.sections import BranchAt, CompactConfig, Strategy
from rollout.loop.compaction import check_compaction
from rollout.training.samples import STRATEGY_KEY, several_samples
from rollout.verl.settings import ESTIMATORS, KEY, TRAINER_MODE, Settings, groups_per_update, limits_for
from rollout.verl.trainer_checks import uses_our_trainer

_KEY = "algorithm.adv_estimator"
log = structlog.get_logger(__name__)
_VOTING = ("grpo", *ESTIMATORS)
"""Estimators in which each trajectory has one vote, however many samples it has."""
_SEVERAL = "several samples of a trajectory, and more samples would mean more optimizer steps of a batch"


def registered_estimators() -> set[str]:
    """verl's own estimators, ours, and those that modules imported so far have registered."""
    return {*ADV_ESTIMATOR_REGISTRY, *ESTIMATORS}


def check_strategy(environment: Environment, config: DictConfig, settings: Settings) -> None:
    """Validate that a batch of the environment's strategy can be trained on, and report where chains take its place.

    Args:
        environment: with the overrides of `settings`.

    Raises:
        ConfigError: the number of optimizer steps would grow with the number of turns, or a tree would have no branch.
    """
    strategy = environment.strategy
    if not config.trainer.use_v1:
        _check_v0(environment)
        return
    _check_several_samples(environment, config)
    if strategy.use is Strategy.CHAIN:
        return
    if strategy.use is Strategy.COMPACT:
        limits = limits_for(environment, config.actor_rollout_ref.rollout)
        check_compaction(environment, limits, place=_place(environment, settings, "compact", "at_tokens"))
        return
    if strategy.use is Strategy.TREE:
        _check_tree(environment, config, settings)
    else:
        _warn_of_short_completions(environment, config)


def _check_tree(environment: Environment, config: DictConfig, settings: Settings) -> None:
    rollout, tree = config.actor_rollout_ref.rollout, environment.strategy.tree
    faults = Faults()
    if tree.branch_at is BranchAt.ENTROPY and not rollout.calculate_log_probs:
        problem = (
            "entropy needs the engine's log-probabilities, and actor_rollout_ref.rollout.calculate_log_probs is off"
        )
        file, key = _place(environment, settings, "tree", "branch_at")
        faults.append(ConfigError(problem, file=file, key=key, remedy="turn it on, or branch at uniform"))
    if environment.strategy.compact != CompactConfig():
        problem = "is given beside tree, whose branches share the context that a summary would replace"
        faults.append(ConfigError(problem, key="strategy.compact", remedy="remove it, or set strategy.use=compact"))
    roots, leaves = tree.roots, rollout.n
    if roots >= leaves:
        problem = f"is {roots}, and a group has {leaves} leaves (actor_rollout_ref.rollout.n), so none would branch"
        file, key = _place(environment, settings, "tree", "roots")
        faults.append(ConfigError(problem, file=file, key=key, remedy="make it smaller than rollout.n, or use chains"))
    raise_all(faults)


def _place(environment: Environment, settings: Settings, strategy: str, option: str) -> tuple[str | None, str]:
    """File and key of an option of a strategy; the run's own configuration has no file.

    A default belongs to where the strategy was chosen.
    """
    key, own = f"strategy.{strategy}.{option}", getattr(environment.strategy, strategy).model_fields_set
    run = settings.strategy.model_dump(exclude_none=True)
    if option in run[strategy] or ("use" in run and option not in own):
        return None, f"{KEY}.{key}"
    return environment.file or None, key


def _check_v0(environment: Environment) -> None:
    """Validate that a trajectory is one sample, and report where chains take a strategy's place."""
    chain, strategy = environment.as_chain, environment.strategy.use.value
    problem = "several training samples of one trajectory, and verl's v0 trainer takes one"
    remedy = "set trainer.use_v1=True, or keep one context"
    raise_all(
        [
            ConfigError(f"{what} {problem}", file=environment.file, key=key, remedy=remedy)
            for key, what in several_samples(chain).items()
        ]
    )
    if chain is not environment:
        log.warning("verl's v0 trainer rolls out chains", environment=environment.name, strategy=strategy)


def _check_several_samples(environment: Environment, config: DictConfig) -> None:
    """Validate that trajectories of several samples can be trained on.

    A strategy makes them of most trajectories, and is refused; of what else may make them is warned.
    """
    faults = Faults()
    for key, what in several_samples(environment).items():
        found = [*_step_faults(config, what), *_vote_faults(config, what)]
        if key == STRATEGY_KEY:
            faults += found
            continue
        for fault in found:
            log.warning(fault.problem, environment=environment.name, key=fault.key, remedy=fault.remedy)
    raise_all(faults)


def _step_faults(config: DictConfig, what: str) -> Iterator[ConfigError]:
    actor, batch = config.actor_rollout_ref.actor, groups_per_update(config)
    if not uses_our_trainer(config):
        remedy = f"set it to {TRAINER_MODE} or another of ours, which take ppo_epochs steps on all samples"
        yield ConfigError(f"{what} {_SEVERAL}", key="trainer.v1.trainer_mode", remedy=remedy)
    if actor.ppo_mini_batch_size < batch:
        problem = f"is below the rows of a batch: {what} {_SEVERAL}"
        yield ConfigError(problem, key="actor_rollout_ref.actor.ppo_mini_batch_size", remedy=f"set it to {batch}")


def _vote_faults(config: DictConfig, what: str) -> Iterator[ConfigError]:
    """Where a trajectory of several samples would count more than others."""
    estimator = str(config.algorithm.adv_estimator)
    if estimator not in _VOTING and estimator in registered_estimators():  # an unknown one has its own message
        problem = f"{estimator} counts each sample, and {what} several of a trajectory: long ones would decide"
        remedy = f"use one with a vote for each trajectory: {', '.join(_VOTING)}"
        yield ConfigError(problem, key=_KEY, remedy=remedy)
    if config.critic.enable:
        problem = f"{what} {_SEVERAL}, and the critic's steps are not bounded"
        yield ConfigError(problem, key="critic.enable", remedy="set critic.enable=False")


def _warn_of_short_completions(environment: Environment, config: DictConfig) -> None:
    """Warn where a full history leaves a turn fewer tokens than it may have: the response has room for both."""
    limits = limits_for(environment, config.actor_rollout_ref.rollout)
    history = environment.strategy.single_turn.history_tokens
    if history + (limits.tokens_per_turn or 1) > limits.response_tokens:
        log.warning(
            "a turn of single_turn with a full history is cut: history and completion share data.max_response_length",
            environment=environment.name,
            key="data.max_response_length",
            max_response_length=limits.response_tokens,
            history_tokens=history,
            tokens_per_turn=limits.tokens_per_turn,
            remedy="raise it, or lower history_tokens",
        )
