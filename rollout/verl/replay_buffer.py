"""verl's replay buffers, extended by `mcp/*` metrics and a bound on the share of withdrawn trajectories.

`trainer.v1.sampler.custom_sampler` names a class of this module. Its `sampler_kwargs` are `max_failed_share`, the
bound, and `poll_interval_s`, how often the trainer checks whether its batch is complete.
"""

from __future__ import annotations

from typing import Any, cast

import ray
import structlog
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync

from rollout.verl.batch_statistics import BatchStatistics, statistics_collector

log = structlog.get_logger(__name__)


class TooManyFailures(RuntimeError):
    """A larger share of a batch was withdrawn than `max_failed_share` allows; training stops."""


class ToolsChanged(RuntimeError):
    """A server changed its tools during training; the policy would learn from a mixture, so training stops."""


def check_failures(batch: BatchStatistics, max_failed_share: float) -> None:
    """Refuse a batch that cannot be trained on.

    Raises:
        ToolsChanged: with the differences, for any share of withdrawn trajectories.
        TooManyFailures: with the reasons, most frequent first.
    """
    if batch.tools_changed:
        raise ToolsChanged(
            "training stops, because tools are no longer what it began with:\n"
            + "\n".join(batch.tools_changed)
            + "\nReview the difference, accept it with `mcp-rollout tool-config ... --accept`, and start again."
        )
    if batch.failed_share > max_failed_share:
        reasons = "\n".join(f"  {count} x {reason}" for reason, count in batch.failures.most_common(10))
        raise TooManyFailures(
            f"{batch.failures.total()} of {len(batch.trajectories)} trajectories were withdrawn, more than "
            f"max_failed_share={max_failed_share} allows:\n{reasons}"
        )


def report_drift(batch: BatchStatistics) -> None:
    """Log one warning if sibling trajectories got different results from identical calls."""
    if batch.drifts:
        log.warning(
            "environment drift: identical calls of sibling trajectories got different results",
            calls=len(batch.drifts),
            tools=sorted({f"{drift.one.server}/{drift.one.tool}" for drift in batch.drifts}),
            example=str(batch.drifts[0]),
        )


class _BatchChecks:
    """Mixin for verl's replay buffers."""

    sampler_kwargs: Any
    poll_interval: float

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.poll_interval = float(self.sampler_kwargs.get("poll_interval_s", self.poll_interval))

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[Any, dict[str, Any]]:
        """Sample as verl does, and add `mcp/*` to its metrics.

        Raises:
            ToolsChanged: a server has changed its tools.
            TooManyFailures: more trajectories of the batch were withdrawn than allowed, possibly all.
        """
        try:
            batch, metrics = super().sample(global_steps, partition_id, batch_size)  # type: ignore[misc]
        except RuntimeError:
            # verl rejects a batch without trajectories; our error says why there are none.
            self._checked(partition_id)
            raise
        return batch, metrics | self._checked(partition_id).metrics()

    def _checked(self, partition_id: str) -> BatchStatistics:
        batch = cast("BatchStatistics", ray.get(statistics_collector().drain.remote(partition_id == "val")))
        check_failures(batch, float(self.sampler_kwargs.get("max_failed_share", 0.5)))
        report_drift(batch)
        if partition_id != "val" and batch.trajectories and not batch.in_loss:
            # verl fails on a batch without a token in the loss, and does not report why there is none.
            marks = {name: share for name, share in batch.metrics().items() if name.startswith("mcp/marks/") and share}
            log.error("no token of this batch is in the loss: the filters masked every trajectory", **marks)
        return batch


class MCPReplayBuffer(_BatchChecks, ReplayBuffer):
    """For `trainer.v1.trainer_mode=sync`."""


class MCPReplayBufferAsync(_BatchChecks, ReplayBufferAsync):
    """For the asynchronous trainer modes."""
