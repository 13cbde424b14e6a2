"""Validate the trainer settings of a configuration, and the trainer class that it names."""

from __future__ import annotations

import os
from collections.abc import Collection

import structlog
from omegaconf import DictConfig, OmegaConf

from gateway.errors import ConfigError
from rollout.environment.config import Environment
from rollout.environment.reward_config import CUSTOM_PART
from rollout.environment.sections import ThinkingContext
from rollout.verl.settings import ESTIMATORS, KEY, TRAINER_MODE, Settings, limits_for

log = structlog.get_logger(__name__)

SYNCHRONOUS = ("sync", TRAINER_MODE)
"""Trainer modes that sample, train and synchronise one batch after the other."""
_MODE_KEY = "trainer.v1.trainer_mode"
_MODULES = "VERL_USE_EXTERNAL_MODULES"
MODULES_KEY = f"ray_kwargs.ray_init.runtime_env.env_vars.{_MODULES}"
"""Where verl's configuration names the modules that its processes import first."""
_MODULE = "rollout.verl.trainer"
_WITHOUT_GROUPS = ("gae", "reinforce_plus_plus")
"""Estimators without a baseline over the trajectories of a row."""


def uses_our_trainer(config: DictConfig) -> bool:
    return bool(config.trainer.use_v1) and config.trainer.v1.trainer_mode == TRAINER_MODE


def check_trainer(config: DictConfig, settings: Settings) -> None:
    """Validate that verl's processes find the trainer class, and that it writes what `record_trained` asks for.

    Raises:
        ConfigError: the class is not registered in verl's processes, or modules of the user's are lost there, or
            `record_trained` is set for another trainer.
    """
    if settings.record_trained and not uses_our_trainer(config):
        problem = "is True, and verl's own trainers write no record of what they computed on each token"
        remedy = f"set {_MODE_KEY}={TRAINER_MODE}, or leave it False"
        raise ConfigError(problem, key=f"{KEY}.record_trained", remedy=remedy)
    if config.algorithm.adv_estimator in ESTIMATORS and not uses_our_trainer(config):
        problem = f"{config.algorithm.adv_estimator} needs columns that verl's own trainers do not read"
        raise ConfigError(problem, key="algorithm.adv_estimator", remedy=f"set {_MODE_KEY}={TRAINER_MODE}, or use grpo")
    given = external_modules(config)
    if uses_our_trainer(config) and _MODULE not in given:
        problem = f"does not name {_MODULE}, so verl's trainer process does not know the mode {TRAINER_MODE}"
        remedy = f"set it to {','.join([_MODULE, *given])}, or {_MODE_KEY}=sync"
        raise ConfigError(problem, key=MODULES_KEY, remedy=remedy)
    if given and (lost := [name for name in _names(os.environ.get(_MODULES)) if name not in given]):
        problem = f"hides {', '.join(lost)} of your environment's {_MODULES} from verl's processes"
        raise ConfigError(problem, key=MODULES_KEY, remedy=f"set it to {','.join([*given, *lost])}")


def external_modules(config: DictConfig) -> list[str]:
    """The modules that verl's processes import first."""
    return _names(OmegaConf.select(config, MODULES_KEY))


def _names(modules: str | None) -> list[str]:
    return [name.strip() for name in (modules or "").split(",") if name.strip()]


def warn_of_several_updates(environment: Environment, config: DictConfig) -> None:
    """Warn where trajectories of several training samples can make more than one optimizer step of a batch.

    verl's own trainers pad a batch to a multiple of `ppo_mini_batch_size * n` samples, and take a step for each slice
    of that size; ours takes one step on all samples, unless `ppo_mini_batch_size` asks for several.
    """
    if environment.thinking.context is not ThinkingContext.DROP_PREVIOUS or not environment.has_user_messages:
        return
    mini_batch, batch = config.actor_rollout_ref.actor.ppo_mini_batch_size, config.data.train_batch_size
    if uses_our_trainer(config):
        key, several = "actor_rollout_ref.actor.ppo_mini_batch_size", mini_batch < batch
        remedy = "set it to data.train_batch_size for one step on all of them"
    else:
        limits = limits_for(environment, config.actor_rollout_ref.rollout)
        # A sample ends where the user speaks again, after at least one assistant turn; nothing follows the last user
        # turn. An agent may speak after each turn.
        most = limits.user_turns if environment.agent is None else None
        samples = min(limits.assistant_turns, most or limits.assistant_turns)
        key, several = _MODE_KEY, mini_batch < batch * samples
        remedy = f"set it to {TRAINER_MODE} for one step on all of them, or keep the thinking"
    if several:
        log.warning(
            "drop_previous makes several training samples of a trajectory, so a batch can take more than one optimizer "
            "step, the later ones off-policy, each over samples and padding as they fall",
            environment=environment.name,
            key=key,
            remedy=remedy,
        )


def check_groups(config: DictConfig, parts: Collection[str]) -> None:
    """Validate the settings for groups whose trajectories are withdrawn.

    Args:
        parts: Names of the reward parts that every trajectory reports.

    Raises:
        ConfigError: a trajectory that v0 cannot leave out would count in its group's baseline, or `filter_groups` would
            miss a value of every trajectory, or wait for groups that never have any.
    """
    estimator, filtering = str(config.algorithm.adv_estimator), config.algorithm.filter_groups
    if not config.trainer.use_v1 and estimator not in _WITHOUT_GROUPS:
        raise ConfigError(
            f"{estimator} compares the trajectories of a group, and verl's v0 trainer counts a withdrawn one as a "
            "reward of 0",
            key="algorithm.adv_estimator",
            remedy=f"set trainer.use_v1=True, or one of {', '.join(_WITHOUT_GROUPS)}",
        )
    if not filtering.enable or not config.trainer.use_v1:
        return
    key = "algorithm.filter_groups"
    if config.trainer.v1.trainer_mode not in SYNCHRONOUS:
        problem = "replaces groups without trajectories forever in the asynchronous modes, whatever withdrew them"
        raise ConfigError(problem, key=key, remedy=f"set {_MODE_KEY}={TRAINER_MODE}, or leave it disabled")
    # A reward function's own keys are known when it has returned them.
    if filtering.metric not in ("reward", *parts) and CUSTOM_PART not in parts:
        problem = f"is {filtering.metric!r}, which no trajectory reports"
        raise ConfigError(problem, key=f"{key}.metric", remedy=f"one of reward, {', '.join(parts)}")
