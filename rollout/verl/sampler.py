"""verl's replay buffers, watching how many trajectories were withdrawn.

Named by `trainer.v1.sampler.custom_sampler`. `sampler_kwargs.max_failed_share` is the bound, `poll_interval_s` says how
often the trainer looks whether its batch is complete.
"""

from __future__ import annotations

from typing import Any, cast

import ray
import structlog
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync

from rollout.verl.ledger import Summary, start_ledger

log = structlog.get_logger(__name__)


class TooManyFailures(RuntimeError):
    """More trajectories of a batch were withdrawn than `max_failed_share` allows; training stops here."""


class ChangedInTraining(RuntimeError):
    """A server defines its tools otherwise than when training began; the policy would learn from a mixture."""


def check_failures(summary: Summary, max_failed_share: float) -> None:
    """Refuse a batch that nothing should be learnt from.

    Raises:
        ChangedInTraining: with the differences, whatever the share of trajectories that they took.
        TooManyFailures: with the reasons, most frequent first.
    """
    if summary.tools_changed:
        raise ChangedInTraining(
            "training stops, because tools are no longer what it began with:\n"
            + "\n".join(summary.tools_changed)
            + "\nReview the difference, accept it with `mcp-rollout tool-config ... --accept`, and start again."
        )
    if summary.failed_share <= max_failed_share:
        return
    failed = sum(summary.failures.values())
    reasons = sorted(summary.failures.items(), key=lambda item: -item[1])
    lines = "\n".join(f"  {count} x {reason}" for reason, count in reasons[:10])
    raise TooManyFailures(
        f"{failed} of {summary.trajectories} trajectories were withdrawn, more than "
        f"max_failed_share={max_failed_share} allows:\n{lines}"
    )


def report_drift(summary: Summary) -> None:
    """One line about a batch whose sibling trajectories met different worlds."""
    if summary.drifts:
        example = summary.drifts[0]
        log.warning(
            "environment drift: identical calls of sibling trajectories got different results",
            calls=len(summary.drifts),
            tools=sorted({f"{drift.one.server}/{drift.one.tool}" for drift in summary.drifts}),
            server=example.one.server,
            tool=example.one.tool,
            arguments=example.one.arguments,
            one=example.one.text,
            another=example.other.text,
        )


class _Watching:
    sampler_kwargs: Any
    poll_interval: float

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.poll_interval = float(self.sampler_kwargs.get("poll_interval_s", self.poll_interval))

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[Any, dict[str, Any]]:
        """Sample as verl does; add `mcp/*` metrics to its own.

        Raises:
            ChangedInTraining: a server has changed its tools.
            TooManyFailures: the batch lost more trajectories than allowed, possibly all of them.
        """
        try:
            batch, metrics = super().sample(global_steps, partition_id, batch_size)  # type: ignore[misc]
        except RuntimeError:
            # verl refuses a batch without a single trajectory; our reasons say why there is none.
            self._watch(partition_id)
            raise
        return batch, metrics | self._watch(partition_id).metrics()

    def _watch(self, partition_id: str) -> Summary:
        summary = cast("Summary", ray.get(start_ledger().drain.remote(partition_id == "val")))
        check_failures(summary, float(self.sampler_kwargs.get("max_failed_share", 0.5)))
        report_drift(summary)
        if partition_id != "val" and summary.trajectories and not summary.in_loss:
            # verl fails on a batch without a token in the loss, and does not say why there is none.
            log.error("no token of this batch is in the loss: the filters masked every trajectory", **summary.marks)
        return summary


class MCPReplayBuffer(_Watching, ReplayBuffer):
    """For `trainer.v1.trainer_mode=sync`."""


class MCPReplayBufferAsync(_Watching, ReplayBufferAsync):
    """For the asynchronous trainer modes."""
