"""Validate the settings of sampling and updates before Ray starts: numbers by ranges, names by verl's own functions."""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from math import inf
from traceback import extract_tb
from typing import Any

import numpy as np
import structlog
import torch
from hydra.errors import InstantiationException
from omegaconf import DictConfig, OmegaConf
from verl.protocol import DataProto
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY, AdvantageEstimator
from verl.trainer.ppo.ray_trainer import compute_advantage
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_add_to_batch
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY
from verl.utils.config import omega_conf_to_dataclass, validate_config
from verl.utils.import_utils import import_external_libs

from gateway.config.pydantic_errors import near
from gateway.errors import ConfigError, Faults, raise_all
from rollout.tokens.verl_builder import check_model
from rollout.verl.settings import TRAINER_MODES, context_tokens, groups_per_update
from rollout.verl.strategy_checks import registered_estimators
from rollout.verl.trainer_checks import MODULES_KEY, external_modules, uses_our_trainer

log = structlog.get_logger(__name__)

_ACTOR, _ESTIMATOR = "actor_rollout_ref.actor", "algorithm.adv_estimator"
_LOSS, _TEMPERATURE = f"{_ACTOR}.policy_loss.loss_mode", "rollout.temperature"
_RANGES = {
    (0.01, inf): _TEMPERATURE,
    (0.01, 1): "rollout.top_p rollout.val_kwargs.top_p",
    (-1, inf): "rollout.top_k rollout.val_kwargs.top_k",
    (1, inf): "rollout.n rollout.val_kwargs.n actor.ppo_epochs actor.ppo_mini_batch_size data.train_batch_size"
    " actor.ppo_micro_batch_size_per_gpu actor.ppo_max_token_len_per_gpu rollout.log_prob_micro_batch_size_per_gpu"
    " ref.log_prob_micro_batch_size_per_gpu trainer.v1.separate_async.parameter_sync_step",
    (0, 1): "algorithm.gamma algorithm.lam",
    (0, inf): "rollout.val_kwargs.temperature actor.clip_ratio actor.clip_ratio_low actor.clip_ratio_high"
    " actor.kl_loss_coef actor.grad_clip actor.optim.lr algorithm.kl_ctrl.kl_coef",
    (-1e9, 1e9): "actor.entropy_coeff",  # a negative one is a method, too
}
_NAMES: Mapping[str, tuple[str, Callable[[], Collection[str]]]] = {
    _ESTIMATOR: ("estimator", registered_estimators),
    _LOSS: ("loss", lambda: POLICY_LOSS_REGISTRY),
    "trainer.v1.trainer_mode": ("mode", lambda: {*TRAINER_REGISTRY, *TRAINER_MODES}),
}


def check_numbers(config: DictConfig) -> None:
    """Raises ConfigError where numbers are out of their ranges; a run that only validates ignores the temperature."""
    faults = Faults()
    for (least, most), names in _RANGES.items():
        for name in names.split():
            key = name if name.startswith(("data", "algorithm", "trainer")) else f"actor_rollout_ref.{name}"
            value: Any = OmegaConf.select(config, key)
            may_lack = "micro_batch_size" in key or "clip_ratio" in key
            if (value is None and may_lack) or (name == _TEMPERATURE and config.trainer.val_only):
                continue
            if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= most:
                remedy = f"set it to a number from {least:g} to {most:g}"
                faults.append(ConfigError(f"is {value!r}", key=key, remedy=remedy))
    raise_all(faults)


def check_names(config: DictConfig) -> None:
    """Validate names that verl looks up late; modules that its processes import first may register further ones.

    Raises:
        ConfigError: a name is not registered, and all of these modules can be imported here.
    """
    for key, (what, registered) in _NAMES.items():
        missing, name = list[str](), str(OmegaConf.select(config, key))
        for module in external_modules(config) if name not in registered() else ():
            try:
                import_external_libs([module])
            except ImportError:  # it may be on the nodes of the Ray cluster only
                missing.append(module)
        if name in registered():
            continue
        if not missing:
            remedy = f"modules in {MODULES_KEY} may register it; {near(name, registered(), f'{what} names')}"
            raise ConfigError(f"unknown {what} {name!r}", key=key, remedy=remedy)
        log.warning("modules that may register the name cannot be imported here", key=key, name=name, modules=missing)


def check_update(config: DictConfig) -> None:
    """Validate that verl computes an update of a batch; a run that only validates has none.

    Raises:
        ConfigError: sizes do not fit, or verl's own validation or the functions of an update refuse a setting.
    """
    if config.trainer.val_only:
        return
    actor, has_critic, faults = config.actor_rollout_ref.actor, need_critic(config), Faults(_unfit(config))
    if has_critic:
        faults.check(check_model, str(config.critic.model.path), key="critic.model.path")
    raise_all(faults)
    ones: Any = torch.ones(4, 3)  # two groups of two, with three tokens each
    columns = ("response_mask", "token_level_rewards", "rollout_log_probs", "old_log_probs", "values")
    uids = np.array([*"aabb"], dtype=object)
    batch = DataProto.from_dict({key: ones.clone() for key in columns}, non_tensors={"uid": uids})

    def check_roles(roles: Any) -> None:
        validate_config(config, need_reference_policy(config), has_critic)
        settings: Any = omega_conf_to_dataclass(roles.actor)
        replace(settings.engine)  # checks the strategy, which verl sets past the check
        omega_conf_to_dataclass(roles.rollout)

    def check_loss(name: str) -> None:
        if (loss := POLICY_LOSS_REGISTRY.get(name)) and loss.__module__ == core_algos.__name__:
            loss(ones, ones, ones, ones.bool(), actor.loss_agg_mode, omega_conf_to_dataclass(actor), None)

    def check_estimator(name: Any) -> None:
        if name in [*AdvantageEstimator]:
            compute_advantage(batch, name, num_repeat=2, config=config.algorithm)

    checks: Mapping[str, Callable[[Any], object]] = {
        f"{_ACTOR}.loss_agg_mode": lambda mode: core_algos.agg_loss(ones, ones, mode),
        f"{_ACTOR}.kl_loss_type": lambda kind: core_algos.kl_penalty(ones, ones, kind),
        "algorithm.kl_penalty": lambda kind: core_algos.kl_penalty(ones, ones, kind),
        "algorithm.kl_ctrl": core_algos.get_kl_controller,
        "algorithm.rollout_correction": lambda it: it and compute_rollout_correction_and_add_to_batch(batch, it),
        "actor_rollout_ref": check_roles,
        _LOSS: check_loss,
        _ESTIMATOR: check_estimator,
    }
    for key, check in checks.items():
        value = OmegaConf.select(config, key)
        with _verls_words(key, value if isinstance(value, str) else "it"), redirect_stdout(io.StringIO()):
            check(value)


def _unfit(config: DictConfig) -> Iterator[ConfigError]:
    """What verl finds when the critic starts, with the first batch or with the first long trajectory."""
    roles, trainer, has_critic = config.actor_rollout_ref, config.trainer, need_critic(config)
    actor, rollout, parts = roles.actor, roles.rollout, roles.actor.ulysses_sequence_parallel_size
    if config.algorithm.adv_estimator == AdvantageEstimator.GAE and not has_critic:
        yield ConfigError("is gae, which needs a critic", key=_ESTIMATOR, remedy="set critic.enable=True")
    if has_critic and trainer.device == "cpu":
        problem = "is True, and verl's critic needs flash attention, and so a GPU"
        yield ConfigError(problem, key="critic.enable", remedy=f"use another {_ESTIMATOR} than gae")
    longest = min(context_tokens(rollout) or inf, rollout.prompt_length + rollout.response_length)
    if actor.use_dynamic_bsz and actor.ppo_max_token_len_per_gpu * parts < longest:
        problem, remedy = f"holds no trajectory of {longest} tokens, and one may have as many", -(-longest // parts)
        yield ConfigError(problem, key=f"{_ACTOR}.ppo_max_token_len_per_gpu", remedy=f"set it to {remedy}")
    ranks, samples = max(1, trainer.n_gpus_per_node * trainer.nnodes // parts), actor.ppo_mini_batch_size * rollout.n
    size = None if actor.use_dynamic_bsz else actor.ppo_micro_batch_size_per_gpu
    # Our trainer fills up the micro-batches of an update of the whole batch, and verl's v0 all.
    is_filled = uses_our_trainer(config) and actor.ppo_mini_batch_size >= groups_per_update(config)
    if trainer.use_v1 and not is_filled and size and samples % (ranks * size):
        problem = f"{samples} samples do not divide into micro-batches of {size} on each of {ranks} ranks"
        remedy = f"choose another size, or another {_ACTOR}.ppo_mini_batch_size (times rollout.n)"
        yield ConfigError(problem, key=f"{_ACTOR}.ppo_micro_batch_size_per_gpu", remedy=remedy)


@contextmanager
def _verls_words(key: str, value: str) -> Generator[None]:
    """Refuse `key` with what verl says where the block raises."""
    try:
        yield
    except Exception as error:  # the boundary of verl's code, which raises what it likes
        cause: BaseException = error
        if isinstance(error, InstantiationException) and error.__cause__:  # Hydra's own, with the key of the section
            cause, key = error.__cause__, str(error).rpartition("full_key: ")[2]
        said = f"{type(cause).__name__}: {str(cause) or extract_tb(cause.__traceback__)[-1].line}"
        raise ConfigError(f"verl refuses {value}: {said}", key=key, remedy="see verl/trainer/config") from error
