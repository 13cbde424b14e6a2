"""What refusals ask of a run that verl is about to train."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.environment.sections import Strategy
from mcp_rollout.rollout.training.samples import STRATEGY_KEY, several_samples
from mcp_rollout.rollout.verl.settings import KEY, TRAINER_MODE, TRAINER_MODES, Settings, groups_per_update

MODE_KEY, ESTIMATOR_KEY, SAMPLER_KEY = "trainer.v1.trainer_mode", "algorithm.adv_estimator", "trainer.v1.sampler"
CORRECTION_KEY = "algorithm.rollout_correction"
LOSS_KEY = "actor_rollout_ref.actor.policy_loss.loss_mode"
WITHOUT_GROUPS = ("gae", "reinforce_plus_plus")
"""Estimators without a baseline over the trajectories of a row."""
_ASYNC = ("colocate_async", "separate_async", *(mode for mode in TRAINER_MODES if mode != TRAINER_MODE))
_OUR_SAMPLERS = "mcp_rollout.rollout.verl.replay_buffer"


@dataclass(frozen=True)
class Run:
    """A training run, and one of its environments where a condition is about one."""

    config: DictConfig
    settings: Settings
    own_environment: Environment | None = None
    """With the overrides of `settings`."""

    def __getitem__(self, key: str) -> object:
        return OmegaConf.select(self.config, key)

    def place(self, key: str) -> tuple[str | None, str]:
        """The environment's file for keys of its own, unless the run's section overrides what they belong to."""
        if self.own_environment is None or OmegaConf.select(self.config, key.split(".")[0]) is not None:
            return None, key
        if key.split(".")[0] in self.settings.environment:
            return None, f"{KEY}.environment.{key}"
        return self.environment.file or None, key

    def words(self, key: str) -> Mapping[str, object]:
        named = {} if self.own_environment is None else {"environment": self.environment.name}
        return {"value": self[key], "estimator": self[ESTIMATOR_KEY], "loss": self[LOSS_KEY], **named}

    @property
    def environment(self) -> Environment:
        assert self.own_environment is not None
        return self.own_environment

    @property
    def is_v1(self) -> bool:
        return bool(self.config.trainer.use_v1)

    @property
    def is_ours(self) -> bool:
        """Whether the trainer is one of ours."""
        return self.is_v1 and self[MODE_KEY] in TRAINER_MODES

    @property
    def is_async(self) -> bool:
        return self.is_v1 and self[MODE_KEY] in _ASYNC

    @property
    def has_our_sampler(self) -> bool:
        """Whether a sampler of ours samples for a trainer mode that it was written for."""
        is_known = self[MODE_KEY] in ("sync", TRAINER_MODE, *_ASYNC)
        return self.is_v1 and is_known and str(self[f"{SAMPLER_KEY}.custom_sampler.path"]).endswith(_OUR_SAMPLERS)

    @property
    def trains(self) -> bool:
        return not self.config.trainer.val_only

    @property
    def has_groups(self) -> bool:
        """Whether the estimator compares the trajectories of a row; of one that we do not know this is assumed."""
        return self[ESTIMATOR_KEY] not in WITHOUT_GROUPS

    @property
    def batches_in_flight(self) -> float:
        """In an asynchronous mode, beside the batch that is waited for."""
        return self.config.trainer.v1[str(self[MODE_KEY]).removeprefix("mcp_")].num_warmup_batches

    @property
    def corrects(self) -> bool:
        """Whether the loss accounts for tokens that older weights sampled."""
        correction = self.config.algorithm.rollout_correction
        return bool(correction.rollout_is or correction.rollout_rs) or self.bypasses

    @property
    def bypasses(self) -> bool:
        """Whether the sampled log-probabilities stand for the trainer's."""
        return bool(self[f"{CORRECTION_KEY}.bypass_mode"])

    @property
    def updates_once(self) -> bool:
        """Whether a batch is one update, by weights that have not moved since `old_log_probs`."""
        actor = self.config.actor_rollout_ref.actor
        return (
            not self.is_async and actor.ppo_epochs == 1 and actor.ppo_mini_batch_size >= groups_per_update(self.config)
        )

    @property
    def joins_a_cluster(self) -> bool:
        """Whether Ray finds a running cluster, or has to: then other machines may have what this one lacks."""
        given = self["ray_kwargs.ray_init.address"] or os.environ.get("RAY_ADDRESS")
        temporary = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
        # What `ray start` writes and `ray.init` looks for.
        return self.config.trainer.nnodes > 1 or bool(given) or Path(temporary, "ray", "ray_current_cluster").exists()

    @cached_property
    def several(self) -> Mapping[str, str]:
        """What makes several samples of a trajectory, by the key in the environment's file."""
        return several_samples(self.environment if self.is_v1 else self.environment.as_chain)

    @property
    def may_be_several(self) -> bool:
        """Whether what makes several samples makes them of some trajectories only."""
        return STRATEGY_KEY not in self.several

    @property
    def grows_a_tree(self) -> bool:
        return self.is_v1 and self.environment.strategy.use is Strategy.TREE
