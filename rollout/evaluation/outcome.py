"""The summary of a trajectory that a run keeps in memory; the trace is on disk."""

from __future__ import annotations

from dataclasses import dataclass

from rollout.environment.config import AgentConfig
from rollout.environment.strategy_config import Strategy
from rollout.evaluation.resume import RunKey, is_done
from rollout.trace.outcome import Reward, StopReason
from rollout.trace.record import Trace, worlds_lost


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How a trajectory ended: less than a kilobyte, however long the trajectory was."""

    trace: str
    """The trace's id."""
    key: RunKey
    is_done: bool
    """Whether it ended and was scored."""
    agent: AgentConfig | None
    reward: Reward | None
    stop_reason: StopReason | None
    failure: str | None
    """Kind and message of what withdrew it."""
    turns: int
    tool_calls: int
    tool_errors: int
    sampled_tokens: int
    """Not counting tokens that a branch took over."""
    shared_tokens: int
    """Number of tokens that a branch took over."""
    strategy: Strategy
    is_branch: bool
    worlds_lost: int
    """Attempts that ended because the world was lost, the last one included."""

    @classmethod
    def of(cls, trace: Trace) -> Outcome:
        failure = trace.failure
        return cls(
            trace=trace.id,
            key=RunKey.of(trace.task, trace.origin),
            is_done=is_done(trace),
            agent=trace.agent,
            reward=trace.reward,
            stop_reason=trace.stop_reason,
            failure=None if failure is None else f"{failure.kind}: {failure.message}",
            turns=len(trace.turns),
            tool_calls=trace.tool_calls,
            tool_errors=trace.tool_errors,
            sampled_tokens=trace.sampled_anew,
            shared_tokens=trace.strategy.shared_tokens,
            strategy=trace.strategy.use,
            worlds_lost=worlds_lost(trace),
            is_branch=trace.origin.parent is not None,
        )
