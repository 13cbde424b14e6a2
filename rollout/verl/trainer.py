"""The trainer `mcp_sync`: verl's `sync`, with one optimizer update a step and a record of what it computed.

Registered through verl's own `register_trainer`. verl imports this module in its processes, because
configs/mcp_grpo.yaml names it in VERL_USE_EXTERNAL_MODULES.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import structlog
from omegaconf import DictConfig
from transfer_queue import KVBatchMeta

# verl imports external modules before its plugins, and the next imports ask for the platform that VERL_PLATFORM names.
import rollout.verl_cpu.plugin  # noqa: F401  # isort: skip
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils.debug import marked_timer

from rollout.trace.trained import write_trained
from rollout.trace.trained_segment import TrainedSegment
from rollout.verl.estimators import columns_of
from rollout.verl.replay_buffer import BatchChecks
from rollout.verl.settings import ESTIMATORS, TRAINER_MODE, Settings
from rollout.verl.trained_batch import dropped_segments, real_keys, trained_segments, trajectory_metrics

log = structlog.get_logger(__name__)


class _Fixed(dict[str, Any]):
    """A batch's `extra_info` with values that `update` keeps; copies and pickles are plain dicts."""

    def __init__(self, values: Mapping[str, Any], **fixed: Any) -> None:
        super().__init__(values, **fixed)
        self._fixed = fixed

    def update(self, *args: Any, **kwargs: Any) -> None:
        super().update(*args, **kwargs)
        super().update(self._fixed)

    def __reduce__(self) -> Any:
        return dict, (dict(self),)


@register_trainer(TRAINER_MODE)
class MCPTrainer(PPOTrainerSync):
    """verl's synchronous trainer; what has to happen in the trainer's process happens here.

    - Where `ppo_mini_batch_size` is the whole batch, a step is one optimizer update on all samples, however many a
      trajectory has, and the samples that verl adds to fill up the batch have no weight. With a smaller one, verl's own
      mini-batches are taken.
    - Metrics of scores count trajectories, not samples.
    - `tree_grpo` and `step_grpo` are computed from columns that verl's estimators are not given.
    - With `record_trained`, what was computed on each token is written beside the traces.
    """

    def __init__(self, config: DictConfig) -> None:
        super().__init__(config)
        settings = Settings.of(config)
        self._advantages = settings.advantages
        self._trace_dir = settings.trace_dir if settings.record_trained else None
        self._dropped: list[TrainedSegment] = []
        if self._trace_dir is not None and isinstance(self.replay_buffer, BatchChecks):
            self.replay_buffer.on_drop = self._keep_dropped

    @property
    def trainer_mode(self) -> str:
        """The mode that verl's code sees: it compares it with "sync" for batching, refill, checkpoints and resume."""
        return "sync"

    @trainer_mode.setter
    def trainer_mode(self, _: str) -> None:
        """verl's base class assigns the configured name, which is this class's own."""

    def step(self, metrics: dict[str, Any], timing_raw: dict[str, float]) -> KVBatchMeta:
        # What the step computed is in TransferQueue until verl clears the batch, which it does after this method.
        batch = super().step(metrics, timing_raw)
        if self._trace_dir is not None:
            with marked_timer("record_trained", timing_raw):
                self._record(batch)
        return batch

    def _get_required_batch_multiple(self, dp_size: int) -> int:
        """verl fills a batch up to a multiple of this number of samples: here, to ranks of whole micro-batches."""
        if not self._is_one_update:
            return super()._get_required_batch_multiple(dp_size)
        multiple = dp_size * math.lcm(*self._micro_batch_sizes())
        if self.use_critic:  # the critic keeps verl's mini-batches
            multiple = math.lcm(
                multiple, self.config.critic.ppo_mini_batch_size * self.config.actor_rollout_ref.rollout.n
            )
        return multiple

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        if self.config.algorithm.adv_estimator not in ESTIMATORS:
            return super()._compute_advantage(batch, metrics)
        with columns_of(batch, self._advantages):
            return super()._compute_advantage(batch, metrics)

    def _update_actor(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        if self._is_one_update:
            # All samples are one mini-batch. Losses that average over samples divide by the number of real ones;
            # masks take padding out of everything else.
            batch.extra_info = _Fixed(
                batch.extra_info or {}, mini_batch_size=len(batch), global_batch_size=len(real_keys(batch))
            )
        return super()._update_actor(batch, metrics)

    def _compute_metrics(
        self, batch: KVBatchMeta, metrics: dict[str, Any], timing_raw: dict[str, float], global_steps: int, epoch: int
    ) -> None:
        super()._compute_metrics(batch, metrics, timing_raw, global_steps, epoch)
        metrics.update(trajectory_metrics(batch))

    @property
    def _is_one_update(self) -> bool:
        return self.config.actor_rollout_ref.actor.ppo_mini_batch_size >= self.config.data.train_batch_size

    def _micro_batch_sizes(self) -> list[int]:
        """Sizes that verl splits a rank's samples into, where it does not split them by tokens."""
        actor, rollout, ref = (self.config.actor_rollout_ref[role] for role in ("actor", "rollout", "ref"))
        sizes: list[int] = []
        if not actor.use_dynamic_bsz:
            sizes.append(actor.ppo_micro_batch_size_per_gpu)
        if not rollout.log_prob_use_dynamic_bsz:
            sizes.append(rollout.log_prob_micro_batch_size_per_gpu)
        if self.use_reference_policy and not ref.log_prob_use_dynamic_bsz:
            sizes.append(ref.log_prob_micro_batch_size_per_gpu)
        return [size for size in sizes if size]

    def _keep_dropped(self, reasons: Mapping[str, str]) -> None:
        # Read at once: the samples leave TransferQueue when this returns.
        self._dropped += dropped_segments(reasons, self.global_steps)

    def _record(self, batch: KVBatchMeta) -> None:
        assert self._trace_dir is not None
        dropped, self._dropped = self._dropped, []
        try:
            write_trained(self._trace_dir, self.global_steps, [*trained_segments(batch, self.global_steps), *dropped])
        except OSError as error:  # training is worth more than its record
            log.error("what was trained is not recorded", step=self.global_steps, problem=str(error))
