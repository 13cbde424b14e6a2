"""Validate the settings of sampling and updates before Ray starts: numbers by ranges, names by verl's own functions."""

from __future__ import annotations

import io
from collections.abc import Generator, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from math import inf, isfinite
from traceback import extract_tb
from typing import Any

import numpy as np
import torch
from hydra.errors import InstantiationException
from omegaconf import DictConfig, OmegaConf
from verl.protocol import DataProto
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY, AdvantageEstimator
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import omega_conf_to_dataclass, validate_config

from gateway.config.pydantic_errors import near
from gateway.errors import ConfigError, Faults, raise_all
from rollout.tokens.verl_builder import check_model
from rollout.verl.settings import ESTIMATORS, context_tokens, groups_per_update
from rollout.verl.strategy_checks import is_registered
from rollout.verl.trainer_checks import MODULES_KEY, WITHOUT_GROUPS, uses_our_trainer

_RANGES = {
    (0.01, inf): "rollout.temperature",
    (0.01, 1.0): "rollout.top_p rollout.val_kwargs.top_p",
    (-1, inf): "rollout.top_k rollout.val_kwargs.top_k",
    (1, inf): "rollout.n rollout.val_kwargs.n actor.ppo_epochs actor.ppo_mini_batch_size"
    " data.train_batch_size actor.ppo_micro_batch_size_per_gpu rollout.log_prob_micro_batch_size_per_gpu"
    " ref.log_prob_micro_batch_size_per_gpu",
    (0, inf): "rollout.val_kwargs.temperature actor.clip_ratio actor.clip_ratio_low actor.clip_ratio_high"
    " actor.kl_loss_coef actor.grad_clip actor.optim.lr algorithm.gamma algorithm.lam algorithm.kl_ctrl.kl_coef",
    (-inf, inf): "actor.entropy_coeff",  # a negative one is a method, too
}
_ESTIMATOR, _ACTOR, _N = "algorithm.adv_estimator", "actor_rollout_ref.actor", "actor_rollout_ref.rollout.n"


def check_update(config: DictConfig) -> None:
    """Validate that a batch can be sampled, and that verl computes an update of it; a run that only validates has none.

    Raises:
        ConfigError: a number is out of its range, a group has one trajectory, sizes do not divide, a name is unknown to
            verl, or verl's own validation or the functions of an update refuse a section.
    """
    if config.trainer.val_only:
        return
    raise_all(list(_number_faults(config)))
    faults = Faults([*_group_faults(config), *_size_faults(config)])
    actor, algorithm, mode = config.actor_rollout_ref.actor, config.algorithm, f"{_ACTOR}.policy_loss.loss_mode"
    if not is_registered(name := str(actor.policy_loss.loss_mode), lambda: POLICY_LOSS_REGISTRY, config, key=mode):
        remedy = f"modules in {MODULES_KEY} may register it; {near(name, POLICY_LOSS_REGISTRY, 'losses')}"
        faults.append(ConfigError(f"unknown loss {name!r}", key=mode, remedy=remedy))
    ones: Any = torch.ones(4, 3)  # two groups of two, with three tokens each
    with faults.collected(), _verls_words(f"{_ACTOR}.loss_agg_mode", actor.loss_agg_mode):
        core_algos.agg_loss(ones, ones, actor.loss_agg_mode)
    for key in (f"{_ACTOR}.kl_loss_type", "algorithm.kl_penalty"):
        with faults.collected(), _verls_words(key, value := OmegaConf.select(config, key)):
            core_algos.kl_penalty(ones, ones, value)
    with faults.collected(), _verls_words("algorithm.kl_ctrl", algorithm.kl_ctrl.type):
        core_algos.get_kl_controller(algorithm.kl_ctrl)
    if need_critic(config):
        faults.check(check_model, str(config.critic.model.path), key="critic.model.path")
    raise_all(faults)
    with _verls_words("actor_rollout_ref"), redirect_stdout(io.StringIO()):
        validate_config(config, need_reference_policy(config), need_critic(config))
        settings: Any = omega_conf_to_dataclass(actor)
        replace(settings.engine)  # checks the strategy, which verl sets past the check
        omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
    _check_advantages(config, ones)
    if (loss := POLICY_LOSS_REGISTRY.get(name)) and loss.__module__ == core_algos.__name__:
        settings.global_batch_info.update(dp_size=1, batch_num_tokens=12, global_batch_size=4)
        with _verls_words(f"{_ACTOR}.policy_loss", name):
            loss(ones, ones, ones, ones.bool(), settings.loss_agg_mode, settings, None)


def _check_advantages(config: DictConfig, ones: torch.Tensor) -> None:
    """Compute advantages as verl's v1 trainer does, from the columns that it fetches."""
    from verl.trainer.ppo.ray_trainer import compute_advantage
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_add_to_batch

    columns = ["response_mask", "token_level_scores", "token_level_rewards", "rollout_log_probs", "old_log_probs"]
    tensors = {key: ones.clone() for key in [*columns, *(["values"] if need_critic(config) else [])]}
    data = DataProto.from_dict(tensors, non_tensors={"uid": np.array([*"aabb"], dtype=object)})
    algorithm, correction = config.algorithm, config.algorithm.rollout_correction
    if correction and not correction.bypass_mode:
        with _verls_words("algorithm.rollout_correction"):
            data, _ = compute_rollout_correction_and_add_to_batch(data, correction)
    if config.trainer.use_v1 and algorithm.adv_estimator in [*AdvantageEstimator]:
        name = AdvantageEstimator(algorithm.adv_estimator)
        with _verls_words(_ESTIMATOR, name.value):
            compute_advantage(data, name, gamma=algorithm.gamma, lam=algorithm.lam, num_repeat=2, config=algorithm)


def _number_faults(config: DictConfig) -> Iterator[ConfigError]:
    for (least, most), names in _RANGES.items():
        for name in names.split():
            key = name if name.startswith(("data", "algorithm")) else f"actor_rollout_ref.{name}"
            value: Any = OmegaConf.select(config, key)
            if value is None and ("micro_batch_size" in key or "clip_ratio" in key):
                continue
            is_number = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
            if not (is_number and least <= value <= most):
                wanted = f" from {least:g}" * isfinite(least) + f" to {most:g}" * isfinite(most)
                yield ConfigError(f"is {value!r}", key=key, remedy=f"set it to a number{wanted}")


def _group_faults(config: DictConfig) -> Iterator[ConfigError]:
    name, has_groups = str(config.algorithm.adv_estimator), {each.value for each in AdvantageEstimator} | {*ESTIMATORS}
    if config.actor_rollout_ref.rollout.n == 1 and name in has_groups - {*WITHOUT_GROUPS}:
        remedy = f"set it to 2 or more, or {_ESTIMATOR} to one of {', '.join(WITHOUT_GROUPS)}"
        yield ConfigError(f"is 1, and {name} compares the trajectories of a row with each other", key=_N, remedy=remedy)
    if name == AdvantageEstimator.GAE and not need_critic(config):
        yield ConfigError("is gae, which needs a critic", key=_ESTIMATOR, remedy="set critic.enable=True")
    if need_critic(config) and config.trainer.device == "cpu":
        problem = "is True, and verl's critic needs flash attention, and so a GPU"
        yield ConfigError(problem, key="critic.enable", remedy=f"use another {_ESTIMATOR} than gae")


def _size_faults(config: DictConfig) -> Iterator[ConfigError]:
    """Sizes of which verl asserts that they fit, when the first batch or the first long trajectory is there."""
    roles, trainer = config.actor_rollout_ref, config.trainer
    actor, rollout, parts = roles.actor, roles.rollout, roles.actor.ulysses_sequence_parallel_size
    if actor.use_dynamic_bsz != rollout.log_prob_use_dynamic_bsz:
        remedy = f"set it to {_ACTOR}.use_dynamic_bsz ({actor.use_dynamic_bsz})"
        yield ConfigError("differs", key="actor_rollout_ref.rollout.log_prob_use_dynamic_bsz", remedy=remedy)
    ranks, mini = max(1, trainer.n_gpus_per_node * trainer.nnodes // parts), actor.ppo_mini_batch_size * rollout.n
    batch = -(-groups_per_update(config) * rollout.n // mini) * mini  # as verl fills it up
    is_filled = not trainer.use_v1 or (uses_our_trainer(config) and batch == mini)  # ours fills up micro-batches
    longest = min(context_tokens(rollout) or inf, rollout.prompt_length + rollout.response_length)
    for role, prefix in {"actor": "ppo", "rollout": "log_prob", "ref": "log_prob"}.items():
        settings, key, samples = roles[role], f"actor_rollout_ref.{role}.{prefix}", mini if role == "actor" else batch
        is_dynamic = settings[f"{prefix}_use_dynamic_bsz".removeprefix("ppo_")]
        if is_dynamic and (settings[f"{prefix}_max_token_len_per_gpu"] or 0) * parts < longest:
            problem, remedy = f"holds no trajectory of {longest} tokens, and one may have as many", -(-longest // parts)
            yield ConfigError(problem, key=f"{key}_max_token_len_per_gpu", remedy=f"set it to {remedy}")
        size = 1 if is_dynamic else settings[f"{prefix}_micro_batch_size_per_gpu"]
        if not is_filled and size and samples % (ranks * size) and (role != "ref" or need_reference_policy(config)):
            problem = f"{samples} samples do not divide into micro-batches of {size} on each of {ranks} ranks"
            remedy = f"choose another size, or another {_ACTOR}.ppo_mini_batch_size (times {_N})"
            yield ConfigError(problem, key=f"{key}_micro_batch_size_per_gpu", remedy=remedy)


@contextmanager
def _verls_words(key: str, value: object = None) -> Generator[None]:
    """Refuse `key` with what verl says where the block raises."""
    try:
        yield
    except Exception as error:  # the boundary of verl's code, which raises what it likes
        cause: BaseException = error
        if isinstance(error, InstantiationException) and error.__cause__:  # Hydra's own, with the key of the section
            cause, key = error.__cause__, str(error).rpartition("full_key: ")[2]
        said = f"{type(cause).__name__}: {str(cause) or extract_tb(cause.__traceback__)[-1].line}"
        problem = f"verl refuses it: {said}" if value is None else f"is {value!r}, which verl refuses: {said}"
        raise ConfigError(problem, key=key, remedy="verl/trainer/config says what it takes") from error
