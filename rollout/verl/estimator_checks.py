"""Checks of `algorithm.adv_estimator`: whether verl's trainer will know it, and whether it can have an effect."""

from __future__ import annotations

from collections.abc import Collection

import structlog
from omegaconf import DictConfig
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY
from verl.utils.import_utils import import_external_libs

from gateway.config.pydantic_errors import near
from gateway.errors import ConfigError
from rollout.environment.config import Environment
from rollout.environment.sections import Strategy
from rollout.verl.settings import ESTIMATORS
from rollout.verl.trainer_checks import MODULES_KEY, external_modules

log = structlog.get_logger(__name__)

_KEY = "algorithm.adv_estimator"


def registered_estimators() -> set[str]:
    """verl's own estimators, ours, and those that modules imported so far have registered."""
    return {*ADV_ESTIMATOR_REGISTRY, *ESTIMATORS}


def check_estimator(config: DictConfig) -> None:
    """Validate that the estimator is registered; verl looks it up after the first batch is rolled out.

    An unknown one may come from the modules that verl's processes import first, so these are imported.

    Raises:
        ConfigError: it is not registered, and all of these modules can be imported here.
    """
    name = str(config.algorithm.adv_estimator)
    if name in registered_estimators():
        return
    missing: list[str] = []
    for module in external_modules(config):
        try:
            import_external_libs([module])
        except ImportError:
            missing.append(module)
    if name in registered_estimators():
        return
    if missing:  # they may be on the nodes of the Ray cluster only
        log.warning(
            "the estimator is not registered here, and modules that may register it cannot be imported here",
            key=_KEY,
            estimator=name,
            modules=missing,
        )
        return
    remedy = f"modules in {MODULES_KEY} may register it; {near(name, registered_estimators(), 'estimators')}"
    raise ConfigError(f"unknown estimator {name!r}", key=_KEY, remedy=remedy)


def warn_of_useless_estimator(environments: Collection[Environment], config: DictConfig) -> None:
    """Warn where the estimator is no more than `grpo`, or counts later rewards more than those of the turn itself."""
    estimator, gamma = str(config.algorithm.adv_estimator), float(config.algorithm.gamma)
    if estimator == "tree_grpo" and not any(each.strategy.use is Strategy.TREE for each in environments):
        log.warning(
            "no environment rolls out trees, and without them tree_grpo compares the trajectories of a row only, as "
            "grpo does",
            key=_KEY,
            remedy="set the strategy to tree, or use grpo",
        )
    if estimator == "step_grpo" and gamma > 1:
        log.warning(
            "above 1, the return of a turn in step_grpo counts a reward the more the later it is earned",
            key="algorithm.gamma",
            gamma=gamma,
            remedy="make it at most 1",
        )
