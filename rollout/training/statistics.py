"""Statistics of trajectories: the trainer's `mcp/*` metrics, and the check that stops a failing run."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from mcp_rollout.gateway.errors import LockMismatch
from mcp_rollout.rollout.environment.reward_config import RewardConfig
from mcp_rollout.rollout.environment.sections import Strategy
from mcp_rollout.rollout.errors import StopTraining
from mcp_rollout.rollout.trace.drift import CallSeen, Drift, calls_seen, drifts
from mcp_rollout.rollout.trace.events import MarkKind
from mcp_rollout.rollout.trace.outcome import StrategyRecord
from mcp_rollout.rollout.trace.record import Trace, worlds_lost
from mcp_rollout.rollout.training.void import Evidence, zero_advantages

_STRATEGIES = tuple(f"mcp/strategy/{strategy}" for strategy in Strategy)
_MARKS = tuple(f"mcp/marks/{kind}" for kind in MarkKind)
_MEANS = (
    "mcp/turns",
    "mcp/tool_calls",
    "mcp/lease_wait_s",
    "mcp/failed_share",
    "mcp/penalty",
    "mcp/interrupted_turns",
    *_STRATEGIES,
    *_MARKS,
)
"""Metrics that every trajectory has a value of."""
_UNKNOWN = RewardConfig()
_SCORE = "mcp/score/mean"
"""The reward, each trajectory counted once: verl's `critic/score/mean` counts its training samples."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrajectoryStatistics:
    """What the trainer needs to know about one finished trajectory."""

    validate: bool
    values: dict[str, float]
    """By metric of which the trainer logs the batch's mean. The score and its parts, `mcp/reward/ENVIRONMENT/PART`, are
    missing if the trajectory was withdrawn."""
    tool_calls: int
    tool_errors: int
    tools_changed: str | None
    """How a server's tools differ from the lock, if the trajectory was withdrawn for that."""
    sampled_tokens: int
    """Without those that a branch took over."""
    is_in_loss: bool
    """Whether at least one of its tokens is in the loss; filters may have masked all."""
    calls: tuple[CallSeen, ...]
    strategy: StrategyRecord
    has_branched: bool
    """Whether it shares its beginning with a sibling."""
    worlds_lost: int
    """Attempts that ended because the world was lost, the last one included."""
    path_s: float
    """Seconds from when the trajectory could begin to its end, with its waiting for a branching point and a lease."""
    evidence: Evidence

    @property
    def group(self) -> Hashable:
        """Identical for the siblings of a row."""
        return self.evidence.group

    @property
    def failure(self) -> str | None:
        """`kind: message` if the trajectory was withdrawn."""
        return self.evidence.failure or None

    @classmethod
    def of(cls, trace: Trace, config: RewardConfig = _UNKNOWN) -> TrajectoryStatistics:
        """The statistics of a finished trajectory.

        Args:
            config: its environment's reward, where that is known.
        """
        reward = None if trace.is_withdrawn else trace.reward
        marks = Counter(f"mcp/marks/{kind}" for turn in trace.turns for kind in {mark.kind for mark in turn.marks})
        values = {
            "mcp/turns": len(trace.turns),
            "mcp/tool_calls": trace.tool_calls,
            "mcp/lease_wait_s": trace.lease_wait_s,
            "mcp/failed_share": float(trace.is_withdrawn),
            "mcp/penalty": reward.penalty if reward else 0.0,
            "mcp/interrupted_turns": float(sum(len(turn.attempts) > turn.generations for turn in trace.turns)),
            **{name: float(name.endswith(f"/{trace.strategy.use}")) for name in _STRATEGIES},
            **{mark: marks[mark] for mark in _MARKS},
        }
        if reward:
            values |= {_SCORE: reward.score} | {
                f"mcp/reward/{trace.task.environment}/{part}": value for part, value in reward.parts.items()
            }
        return cls(
            validate=trace.origin.validate_,
            values=values,
            tool_calls=trace.tool_calls,
            tool_errors=trace.tool_errors,
            tools_changed=trace.failure.message if trace.failure and trace.failure.kind == LockMismatch.code else None,
            sampled_tokens=trace.sampled_anew,
            is_in_loss=not trace.is_withdrawn and any(segment.is_in_loss for segment in trace.segments),
            calls=calls_seen(trace),
            strategy=trace.strategy,
            has_branched=trace.origin.parent is not None,
            worlds_lost=worlds_lost(trace),
            path_s=trace.strategy.lost_s + trace.elapsed_s,
            evidence=Evidence.of(trace, config),
        )


@dataclass(frozen=True)
class BatchStatistics:
    """The statistics of a batch's trajectories."""

    trajectories: Sequence[TrajectoryStatistics]
    workers_replaced: int = 0
    """Worker processes that died, and were replaced, since the batch before."""

    @classmethod
    def merged(cls, batches: Sequence[BatchStatistics]) -> BatchStatistics:
        """The statistics of several batches as one."""
        trajectories = [one for batch in batches for one in batch.trajectories]
        return cls(trajectories, workers_replaced=sum(batch.workers_replaced for batch in batches))

    @property
    def failures(self) -> Counter[str]:
        """Number of withdrawn trajectories by reason."""
        return Counter(one.failure for one in self.trajectories if one.failure)

    @property
    def tools_changed(self) -> list[str]:
        """Each difference between a server's tools and the lock once, in order of arrival."""
        return list(dict.fromkeys(one.tools_changed for one in self.trajectories if one.tools_changed))

    @property
    def in_loss(self) -> int:
        """Number of trajectories with a token in the loss."""
        return sum(one.is_in_loss for one in self.trajectories)

    @cached_property
    def drifts(self) -> list[Drift]:
        """Calls with different results in sibling trajectories."""
        return drifts((one.group, one.calls) for one in self.trajectories)

    @property
    def _critical_path_s(self) -> float:
        """Mean over the groups of the seconds until a group's last trajectory ended."""
        paths: defaultdict[Hashable, float] = defaultdict(float)
        for one in self.trajectories:
            paths[one.group] = max(paths[one.group], one.path_s)
        return fmean(paths.values()) if paths else 0.0

    @property
    def _of_trees(self) -> dict[str, float]:
        """Sums over the batch of what trees saved, and of what that took."""
        strategies = [one.strategy for one in self.trajectories]
        return {
            "mcp/tree/branches": float(sum(one.has_branched for one in self.trajectories)),
            "mcp/tree/shared_tokens": float(sum(strategy.shared_tokens for strategy in strategies)),
            "mcp/tree/replayed_calls": float(sum(strategy.replayed_calls for strategy in strategies)),
            "mcp/tree/restored": float(sum(strategy.restored for strategy in strategies)),
            "mcp/tree/diverged": float(sum(bool(strategy.diverged) for strategy in strategies)),
            "mcp/tree/waited_s": sum(strategy.waited_s for strategy in strategies),
        }

    def metrics(self) -> dict[str, float]:
        """Metrics for verl's loggers; all keys but the reward's parts are the same for every batch."""
        values: defaultdict[str, list[float]] = defaultdict(list)
        for one in self.trajectories:
            for name, value in one.values.items():
                values[name].append(value)
        calls = sum(one.tool_calls for one in self.trajectories)
        return {
            **dict.fromkeys((*_MEANS, _SCORE), 0.0),
            **{name: fmean(values[name]) for name in sorted(values)},
            "mcp/trajectories": float(len(self.trajectories)),
            "mcp/sampled_tokens": float(sum(one.sampled_tokens for one in self.trajectories)),
            "mcp/critical_path_s": self._critical_path_s,
            **self._of_trees,
            "mcp/tool_error_rate": sum(one.tool_errors for one in self.trajectories) / max(calls, 1),
            "mcp/zero_advantage_share": zero_advantages([one.evidence for one in self.trajectories]),
            "mcp/drifted_calls": float(len(self.drifts)),
            "mcp/worlds_lost": float(sum(one.worlds_lost for one in self.trajectories)),
            "mcp/workers_replaced": float(self.workers_replaced),
        }


class TooManyFailures(StopTraining):
    """A larger share of a batch was withdrawn than `max_failed_share` allows."""


class ToolsChanged(StopTraining):
    """A server changed its tools during training; the policy would learn from a mixture."""


def check_failures(batch: BatchStatistics, max_failed_share: float, *, expected: int = 0) -> None:
    """Refuse a batch that cannot be trained on.

    Args:
        expected: how many trajectories the batch still waits for; none of them is assumed to be withdrawn.

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
    failed, total = batch.failures.total(), len(batch.trajectories) + expected
    if failed / max(total, 1) > max_failed_share:
        raise TooManyFailures(
            f"{failed} of {total} trajectories were withdrawn, more than "
            f"max_failed_share={max_failed_share} allows:\n{listed(batch.failures)}"
        )


def listed(failures: Counter[str]) -> str:
    """The reasons of withdrawn trajectories, most frequent first, a line each."""
    return "\n".join(f"  {count} x {reason}" for reason, count in failures.most_common(10))
