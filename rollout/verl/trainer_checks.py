"""Validate the trainer settings of a configuration, and the trainer class that it names."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterator, Sequence

import structlog
from omegaconf import DictConfig, OmegaConf
from verl.trainer.ppo.core_algos import AdvantageEstimator

from gateway.errors import ConfigError, Faults, raise_all
from rollout.environment.config import Environment
from rollout.environment.reward_config import CUSTOM_PART
from rollout.verl.settings import (
    ESTIMATORS,
    KEY,
    SEPARATE_MODE,
    TRAINER_MODE,
    TRAINER_MODES,
    Settings,
    workers_per_node,
)
from rollout.verl_cpu import ROLLOUT_NAME

log = structlog.get_logger(__name__)

_SYNCHRONOUS = ("sync", TRAINER_MODE)
"""Trainer modes that sample, train and synchronise one batch after the other."""
_MODES = ("sync", "colocate_async", "separate_async", *TRAINER_MODES)
_SAMPLERS = "rollout.verl.replay_buffer"
_SAMPLER_KEY = "trainer.v1.sampler"
_MODE_KEY, _ESTIMATOR_KEY = "trainer.v1.trainer_mode", "algorithm.adv_estimator"
_MODULES = "VERL_USE_EXTERNAL_MODULES"
_VARIABLES = "ray_kwargs.ray_init.runtime_env.env_vars"
MODULES_KEY = f"{_VARIABLES}.{_MODULES}"
"""Where verl's configuration names the modules that its processes import first."""
_MODULE = "rollout.verl.trainer"
_WITHOUT_GROUPS = ("gae", "reinforce_plus_plus")
"""Estimators without a baseline over the trajectories of a row."""


def uses_our_trainer(config: DictConfig) -> bool:
    return bool(config.trainer.use_v1) and config.trainer.v1.trainer_mode in TRAINER_MODES


def check_mode(config: DictConfig) -> None:
    """Validate the trainer mode, and what the asynchronous modes need; verl finds most of it after minutes, or never.

    Raises:
        ConfigError: the mode is unknown, the sampler is that of other modes, or `separate_async` lacks a setting.
    """
    if not config.trainer.use_v1:
        return
    mode, sampler = str(config.trainer.v1.trainer_mode), config.trainer.v1.sampler
    if mode not in _MODES:  # unknown, or of a module of the user's
        return
    faults, is_async = Faults(), mode not in _SYNCHRONOUS
    wanted = "MCPReplayBufferAsync" if is_async else "MCPReplayBuffer"
    if str(sampler.custom_sampler.path).endswith(_SAMPLERS) and sampler.custom_sampler.name != wanted:
        problem = f"is {sampler.custom_sampler.name}, which samples as another mode than {mode}"
        if is_async:
            problem += ": max_off_policy_threshold would have no effect, and withdrawn groups would not be replaced"
        faults.append(ConfigError(problem, key=f"{_SAMPLER_KEY}.custom_sampler.name", remedy=f"set it to {wanted}"))
    if sampler.sync_refill_failed_groups and str(sampler.custom_sampler.path).endswith(_SAMPLERS):
        problem = (
            "is True, and our samplers do not read it: they replace withdrawn groups in the asynchronous modes only"
        )
        faults.append(ConfigError(problem, key=f"{_SAMPLER_KEY}.sync_refill_failed_groups", remedy="leave it False"))
    if mode in ("separate_async", SEPARATE_MODE):
        faults += _separate_faults(config)
    threshold, warmup = sampler.max_off_policy_threshold, _warmup_batches(config) if is_async else 0
    if is_async and sampler.max_off_policy_strategy == "wait" and threshold is not None and threshold < warmup + 1:
        problem = f"is {threshold}, and with {warmup} batches in flight verl trains on older prompts: it waits for none"
        remedy = f"set it to {math.ceil(warmup) + 1}, or num_warmup_batches to {threshold - 1}"
        faults.append(ConfigError(problem, key=f"{_SAMPLER_KEY}.max_off_policy_threshold", remedy=remedy))
    correction = config.algorithm.rollout_correction
    corrects = correction.rollout_is or correction.rollout_rs or correction.bypass_mode
    if corrects and not config.actor_rollout_ref.rollout.calculate_log_probs:
        problem = "is False, and algorithm.rollout_correction needs the log-probabilities of the weights that sampled"
        key = "actor_rollout_ref.rollout.calculate_log_probs"
        faults.append(ConfigError(problem, key=key, remedy="set it to True"))
    raise_all(faults)
    if is_async and not corrects:
        log.warning(
            "tokens that older weights sampled are trained on as if the newest had sampled them",
            key="algorithm.rollout_correction.rollout_is",
            remedy="set it to token, as recipe=async does",
        )


def _separate_faults(config: DictConfig) -> Iterator[ConfigError]:
    """What verl asserts of `separate_async` when its trainer starts."""
    rollout, batch, mini = config.actor_rollout_ref.rollout, config.data.train_batch_size, "ppo_mini_batch_size"
    steps, size = config.trainer.v1.separate_async.parameter_sync_step, config.actor_rollout_ref.actor[mini]
    if batch != steps * size:
        problem = f"is {size}: times parameter_sync_step ({steps}) it must be data.train_batch_size ({batch})"
        remedy = f"set it to {batch // steps}" if batch % steps == 0 else "choose three numbers that fit"
        yield ConfigError(problem, key=f"actor_rollout_ref.actor.{mini}", remedy=remedy)
    for key in ("nnodes", "n_gpus_per_node"):
        if rollout[key] <= 0:
            problem = f"is {rollout[key]}, and the engine of separate_async has devices of its own"
            yield ConfigError(problem, key=f"actor_rollout_ref.rollout.{key}", remedy="set it to 1 or more")
    key = "actor_rollout_ref.rollout.checkpoint_engine.backend"
    if rollout.checkpoint_engine.backend == "naive":
        ours = "gloo, with custom_backend_module=rollout.verl_cpu.gloo_weights"
        remedy = ours if rollout.name == ROLLOUT_NAME else "for example nccl"
        yield ConfigError("is naive, which sends weights to an engine on the same devices only", key=key, remedy=remedy)
    level = OmegaConf.select(config, f"{_VARIABLES}.VERL_LOGGING_LEVEL") or os.environ.get("VERL_LOGGING_LEVEL", "INFO")
    # verl's line that says so, at the level INFO, has an argument that its logger does not take.
    if not config.actor_rollout_ref.hybrid_engine and str(level).upper() in ("DEBUG", "INFO"):
        problem = "is False, and verl 0.9.1 ends with a TypeError where it logs that"
        yield ConfigError(problem, key="actor_rollout_ref.hybrid_engine", remedy="set VERL_LOGGING_LEVEL=WARN")
    reward = config.reward.reward_model
    if reward.enable and not reward.enable_resource_pool:
        problem = "is False, and the engine of separate_async never leaves its devices to a reward model"
        yield ConfigError(problem, key="reward.reward_model.enable_resource_pool", remedy="set it to True")


def check_waiting(environments: Sequence[Environment], config: DictConfig) -> None:
    """Validate that the engine can be resumed: a server takes so many calls at a time, those that wait included.

    Args:
        environments: With the trainer's overrides, each with one worker's share of its sessions.

    Raises:
        ConfigError: in an asynchronous mode as many generations may wait for the trainer as keep verl's call out.
    """
    mode, rollout = str(config.trainer.v1.trainer_mode), config.actor_rollout_ref.rollout
    if not config.trainer.use_v1 or mode not in _MODES or mode in _SYNCHRONOUS:
        return
    engine = rollout if mode in ("separate_async", SEPARATE_MODE) else config.trainer
    split = rollout.tensor_model_parallel_size * rollout.data_parallel_size * rollout.pipeline_model_parallel_size
    servers = max(1, engine.n_gpus_per_node * engine.nnodes // split)
    # verl.workers.rollout.replica.RolloutReplica.max_concurrency; one is left for the call that resumes.
    most = servers * (max(1000, rollout.max_num_seqs + 16) - 1)
    waiting = math.ceil((_warmup_batches(config) + 1) * config.data.train_batch_size * rollout.n)
    if not any(environment.hosts for environment in environments):
        sessions = sum(environment.max_sessions for environment in environments)
        waiting = min(waiting, sessions * workers_per_node(config) * config.trainer.nnodes)
    if waiting > most:
        problem = f"lets {waiting} generations wait for the trainer: from {most + 1} on, verl cannot resume the engine"
        remedy = f"at most {most} for all environments together, or give the engine more servers"
        raise ConfigError(problem, key=f"{KEY}.max_sessions", remedy=remedy)


def _warmup_batches(config: DictConfig) -> float:
    """Batches in flight in an asynchronous mode beside the one that is waited for."""
    return config.trainer.v1[str(config.trainer.v1.trainer_mode).removeprefix("mcp_")].num_warmup_batches


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
        raise ConfigError(problem, key=_ESTIMATOR_KEY, remedy=f"set {_MODE_KEY}={TRAINER_MODE}, or use grpo")
    given = external_modules(config)
    if uses_our_trainer(config) and _MODULE not in given:
        mode = config.trainer.v1.trainer_mode
        problem = f"does not name {_MODULE}, so verl's trainer process does not know the mode {mode}"
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


def check_groups(config: DictConfig, parts: Collection[str]) -> None:
    """Validate the settings for groups whose trajectories are withdrawn.

    Args:
        parts: Names of the reward parts that every trajectory reports.

    Raises:
        ConfigError: a trajectory that v0 cannot leave out would count in its group's baseline, or `filter_groups` would
            miss a value of every trajectory, or a group has one trajectory.
    """
    estimator, filtering = str(config.algorithm.adv_estimator), config.algorithm.filter_groups
    has_groups = estimator not in _WITHOUT_GROUPS
    if has_groups and not config.trainer.use_v1:
        problem = "compares the trajectories of a group, and verl's v0 trainer counts a withdrawn one as a reward of 0"
        remedy = f"set trainer.use_v1=True, or one of {', '.join(_WITHOUT_GROUPS)}"
        raise ConfigError(f"{estimator} {problem}", key=_ESTIMATOR_KEY, remedy=remedy)
    is_alone = config.actor_rollout_ref.rollout.n == 1 and not config.trainer.val_only
    if has_groups and is_alone and estimator in [*AdvantageEstimator, *ESTIMATORS]:
        problem, key = f"is 1, and {estimator} compares the trajectories of a group", "actor_rollout_ref.rollout.n"
        remedy = f"set it to 2 or more, or {_ESTIMATOR_KEY} to one of {', '.join(_WITHOUT_GROUPS)}"
        raise ConfigError(problem, key=key, remedy=remedy)
    if not filtering.enable or not config.trainer.use_v1:
        return
    key = "algorithm.filter_groups"
    # A reward function's own keys are known when it has returned them.
    if filtering.metric not in ("reward", *parts) and CUSTOM_PART not in parts:
        problem = f"is {filtering.metric!r}, which no trajectory reports"
        raise ConfigError(problem, key=f"{key}.metric", remedy=f"one of reward, {', '.join(parts)}")
