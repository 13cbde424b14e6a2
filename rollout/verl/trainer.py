"""The trainers `mcp_sync`, `mcp_colocate_async` and `mcp_separate_async`: verl's own, with one optimizer update for a
batch and a record of what was computed.

Registered through verl's own `register_trainer`. verl imports this module in its processes, because
configs/mcp_grpo.yaml names it in VERL_USE_EXTERNAL_MODULES.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray
import structlog
import transfer_queue as tq
from omegaconf import DictConfig
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.trainer_base import PPOTrainer, register_trainer
from verl.trainer.ppo.v1.trainer_colocate_async import PPOTrainerColocateAsync
from verl.trainer.ppo.v1.trainer_separate_async import PPOTrainerSeparateAsync
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.debug import marked_timer
from verl.workers.config import HFModelConfig
from verl.workers.rollout.llm_server import LLMServerClient, LLMServerManager

from mcp_rollout.gateway.private_files import replacing
from mcp_rollout.rollout.decoding.sampling import end_ids
from mcp_rollout.rollout.trace.trained import write_trained
from mcp_rollout.rollout.trace.trained_segment import TrainedSegment
from mcp_rollout.rollout.training.statistics import BatchStatistics
from mcp_rollout.rollout.verl.agent_workers import MOST_ATTEMPTS
from mcp_rollout.rollout.verl.batch_statistics import statistics_collector
from mcp_rollout.rollout.verl.client import AttemptsClient
from mcp_rollout.rollout.verl.estimators import columns_of
from mcp_rollout.rollout.verl.replay_buffer import BatchChecks, Sampled, metrics_of
from mcp_rollout.rollout.verl.settings import (
    COLOCATE_MODE,
    ESTIMATORS,
    SEPARATE_MODE,
    TRAINER_MODE,
    Settings,
    groups_per_update,
)
from mcp_rollout.rollout.verl.trained_batch import dropped_segments, real_keys, trained_segments, trajectory_metrics

log = structlog.get_logger(__name__)


_STATE = "mcp_rollout.pickle"
"""File of a checkpoint with what verl does not keep: times resumed, statistics of trajectories."""


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


class _Trainer(PPOTrainer):
    """Before verl's trainer of a mode: what has to happen in the trainer's process happens here.

    - Where `ppo_mini_batch_size` is the whole batch, a batch is one optimizer update on all samples, however many a
      trajectory has, and the samples that verl adds to fill up the batch have no weight. With a smaller one, verl's own
      mini-batches are taken.
    - Metrics of scores count trajectories, not samples, and `mcp/*` are those of all batches of a step.
    - `tree_grpo` and `step_grpo` are computed from columns that verl's estimators are not given.
    - With `record_trained`, what was computed on each token is written beside the traces.
    """

    verls_mode: str

    def __init__(self, config: DictConfig) -> None:
        super().__init__(config)
        settings = Settings.of(config)
        self._sampled: list[Sampled] = []
        self._advantages = settings.advantages
        self._trace_dir = settings.trace_dir if settings.record_trained else None
        self._dropped: list[TrainedSegment] = []
        if self._trace_dir is not None and isinstance(self.replay_buffer, BatchChecks):
            self.replay_buffer.on_drop = self._keep_dropped

    @property
    def trainer_mode(self) -> str:
        """The mode that verl's code sees: it chooses batching, refill, checkpoints, resume and a section by it."""
        return self.verls_mode

    @trainer_mode.setter
    def trainer_mode(self, _: str) -> None:
        """verl's base class assigns the configured name, which is this class's own."""

    def step(self, metrics: dict[str, Any], timing_raw: dict[str, float]) -> KVBatchMeta:
        # What the step computed is in TransferQueue until verl clears the batch, which it does after this method.
        batch = super().step(metrics, timing_raw)
        if self._sampled:  # verl has averaged the values of several batches
            metrics.update(metrics_of(self._sampled))
            self._sampled = []
        if self._trace_dir is not None:
            with marked_timer("record_trained", timing_raw):
                self._record(batch)
        return batch

    def on_sample_end(self) -> None:
        super().on_sample_end()
        if isinstance(self.replay_buffer, BatchChecks) and self.replay_buffer.sampled is not None:
            self._sampled.append(self.replay_buffer.sampled)

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
        return self.config.actor_rollout_ref.actor.ppo_mini_batch_size >= groups_per_update(self.config)

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


@register_trainer(TRAINER_MODE)
class MCPTrainer(_Trainer, PPOTrainerSync):
    """verl's synchronous trainer."""

    verls_mode = "sync"


class _AsyncTrainer(_Trainer):
    """What the asynchronous modes share: engines that are taken from trajectories, and prompts that outlive a job.

    - The clocks of trajectories stand still while no engine generates for them.
    - A checkpoint has the statistics of the trajectories that it has, and the number of times that it was resumed from:
      verl plays prompts that had not ended again under the same uid, and traces tell them apart by their attempt.
    """

    agent_loop_manager: Any  # ours, or one of the user's

    def __init__(self, config: DictConfig) -> None:
        super().__init__(config)
        self._resumed = 0
        self._collector = statistics_collector()  # alive before the manager, which the checkpoint is loaded before

    def _client_of(self, servers: LLMServerManager) -> LLMServerClient:
        model: HFModelConfig = omega_conf_to_dataclass(self.config.actor_rollout_ref.model)
        ends = end_ids(model.generation_config, model.tokenizer.eos_token_id)
        ignored = self.config.actor_rollout_ref.rollout.ignore_eos
        return servers.get_client(client_cls=AttemptsClient, end_ids=frozenset() if ignored else ends)

    def _hold_engine(self, is_held: bool) -> None:
        # A manager of the user's own has no clocks.
        if hasattr(self.agent_loop_manager, "engine_held"):
            self.agent_loop_manager.engine_held(is_held)

    def _save_checkpoint(self) -> None:
        super()._save_checkpoint()
        folder = Path(self.config.trainer.default_local_dir) / f"global_step_{self.global_steps}"
        _write_state(folder / _STATE, self._resumed, ray.get(self._collector.of.remote()))

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()
        folder = Path(self.config.trainer.default_local_dir) / f"global_step_{self.global_steps}"
        if self.config.trainer.resume_mode == "resume_path":
            folder = Path(self.config.trainer.resume_from_path)
        if self.config.trainer.resume_mode == "disable" or not (folder / _STATE).exists():
            return
        resumed, statistics = pickle.loads((folder / _STATE).read_bytes())
        self._resumed = resumed + 1
        # Written back, so that a second job that begins here counts on.
        _write_state(folder / _STATE, self._resumed, statistics)
        ended = {key for key, tag in (tq.kv_list("train") or {}).get("train", {}).items() if _has_ended(tag)}
        ray.get([self._collector.add.remote(one) for one in statistics.trajectories if one.group in ended])

    def _reissue_inflight_prompts(self, partition_id: str = "train") -> int:
        self.agent_loop_manager.attempt = self._resumed * MOST_ATTEMPTS
        try:
            return super()._reissue_inflight_prompts(partition_id)
        finally:
            self.agent_loop_manager.attempt = 0


def _write_state(path: Path, resumed: int, statistics: BatchStatistics) -> None:
    """Write what a checkpoint has beside verl's own, whole or not at all: each resume from it would end at a part."""
    with replacing(path) as partial:
        partial.write_bytes(pickle.dumps((resumed, statistics)))


@register_trainer(COLOCATE_MODE)
class MCPColocateAsyncTrainer(_AsyncTrainer, PPOTrainerColocateAsync):
    """verl's trainer that shares its devices with the engine, and takes them while it trains."""

    verls_mode = "colocate_async"

    def get_llm_client(self) -> LLMServerClient:
        return self._client_of(self.llm_server_manager)

    def on_sample_end(self) -> None:
        self._hold_engine(True)
        super().on_sample_end()

    def on_step_end(self) -> None:
        super().on_step_end()
        self._hold_engine(False)


@register_trainer(SEPARATE_MODE)
class MCPSeparateAsyncTrainer(_AsyncTrainer, PPOTrainerSeparateAsync):
    """verl's trainer with engines on devices of their own, which generate while it trains."""

    verls_mode = "separate_async"
    standalone_server_manager: LLMServerManager

    def get_llm_client(self) -> LLMServerClient:
        return self._client_of(self.standalone_server_manager)

    def on_step_end(self) -> None:
        self._hold_engine(True)  # while it gets new weights
        super().on_step_end()
        self._hold_engine(False)


def _has_ended(tag: Mapping[str, Any]) -> bool:
    return bool(tag.get("is_prompt")) and tag["status"] in ("finished", "failure")
