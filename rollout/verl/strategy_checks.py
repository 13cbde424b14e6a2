"""Checks of an environment's strategy against verl's configuration."""

from __future__ import annotations

import structlog
from omegaconf import DictConfig

from gateway.errors import ConfigError
from rollout.environment.config import Environment
from rollout.environment.strategy_config import BranchAt, Strategy
from rollout.verl.settings import ESTIMATORS, KEY, TRAINER_MODE
from rollout.verl.trainer_checks import uses_our_trainer

log = structlog.get_logger(__name__)


def check_strategy(environment: Environment, config: DictConfig) -> None:
    """Validate that a batch of the environment's strategy can be trained on, and report where chains take its place.

    Raises:
        ConfigError: the number of optimizer steps would grow with the number of turns, or a tree would have no branch.
    """
    strategy = environment.strategy
    if strategy.use is Strategy.CHAIN:
        return
    if not config.trainer.use_v1:
        log.warning("verl's v0 trainer rolls out chains", environment=environment.name, strategy=strategy.use.value)
        return
    log.info("validation rolls out chains", environment=environment.name, strategy=strategy.use.value)
    if strategy.use is Strategy.TREE:
        _check_tree(environment, config)
    else:
        _check_single_turn(config)


def _check_tree(environment: Environment, config: DictConfig) -> None:
    rollout, tree = config.actor_rollout_ref.rollout, environment.strategy.tree
    if tree.branch_at is BranchAt.ENTROPY and not rollout.calculate_log_probs:
        problem = (
            "entropy needs the engine's log-probabilities, and actor_rollout_ref.rollout.calculate_log_probs is off"
        )
        remedy = "turn it on, or branch at uniform"
        raise ConfigError(problem, file=environment.file or None, key="strategy.tree.branch_at", remedy=remedy)
    roots, leaves = tree.roots, rollout.n
    if roots >= leaves:
        problem = f"is {roots}, and a group has {leaves} leaves (actor_rollout_ref.rollout.n), so none would branch"
        remedy = "make it smaller than rollout.n, or use chains"
        raise ConfigError(problem, file=environment.file or None, key="strategy.tree.roots", remedy=remedy)


def _check_single_turn(config: DictConfig) -> None:
    actor, batch = config.actor_rollout_ref.actor, config.data.train_batch_size
    needed = "makes a sample of each turn, and more samples would mean more optimizer steps of a batch"
    if not uses_our_trainer(config):
        remedy = f"set it to {TRAINER_MODE}, which takes ppo_epochs steps on all samples"
        raise ConfigError(f"single_turn {needed}", key="trainer.v1.trainer_mode", remedy=remedy)
    if actor.ppo_mini_batch_size < batch:
        problem, key = f"is below data.train_batch_size: single_turn {needed}", "ppo_mini_batch_size"
        raise ConfigError(problem, key=f"actor_rollout_ref.actor.{key}", remedy=f"set it to {batch}")
    estimator, voting = str(config.algorithm.adv_estimator), ("grpo", *ESTIMATORS)
    if estimator not in voting:
        problem = (
            f"{estimator} counts each sample, and single_turn makes one of each turn: long trajectories would decide"
        )
        remedy = f"use one with a vote for each trajectory: {', '.join(voting)}"
        raise ConfigError(problem, key="algorithm.adv_estimator", remedy=remedy)
    if config.critic.enable:
        problem = f"single_turn {needed}, and the critic's steps are not bounded"
        remedy = "set critic.enable=False"
        raise ConfigError(problem, key=f"{KEY}.strategy.use", remedy=remedy)
