"""How a trajectory was rolled out, and how it ended: its strategy, stop reason and reward, or why it was withdrawn."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from mcp_rollout.rollout.environment.sections import Strategy
from mcp_rollout.rollout.trace.segment import FINITE


@dataclass(kw_only=True, slots=True)
class StrategyRecord:
    """The strategy of a trajectory, and for a leaf of a tree, what it took over from its parent (`origin.parent`)."""

    __pydantic_config__ = FINITE

    use: Strategy = Strategy.CHAIN
    shared_turns: int = 0
    """Number of turns taken over from the parent."""
    shared_tokens: int = 0
    """Tokens that were sampled in these turns, once for all leaves that share them."""
    replayed_calls: int = 0
    """Calls that were sent again to bring a fresh world to the branching point, user turns included."""
    restored: bool = False
    """Whether the world was restored from a snapshot instead."""
    waited_s: float = 0.0
    """Seconds until the branching point was known, before the lease."""
    diverged: str = ""
    """How a replayed call differed from the recorded one; the leaf was then rolled out as a chain."""
    lost_s: float = 0.0
    """Seconds of the attempts before this one."""
    note: str = ""
    """Why a leaf that was to branch is a chain."""


ROUNDING = 1e-9
"""Tolerance for comparing scores, which are sums of floats."""


class StopReason(StrEnum):
    """How a trajectory ended."""

    ANSWERED = "answered"
    """The policy answered without calling a tool, and the environment has no user."""
    USER_DONE = "user_done"
    WORLD_DONE = "world_done"
    """A trusted server said in a tool's result that the world ended."""
    TURN_LIMIT = "turn_limit"
    USER_TURN_LIMIT = "user_turn_limit"
    TOOL_CALL_LIMIT = "tool_call_limit"
    TOKEN_LIMIT = "token_limit"
    TIME_LIMIT = "time_limit"
    BAD_SUMMARY = "bad_summary"
    """With the strategy `compact`, the policy wrote no summary that its context could be replaced by."""
    FILTERED = "filtered"
    """A filter with the action `end` matched the last turn."""
    AGENT_ENDED = "agent_ended"
    """The environment's agent returned before the policy's last message was answered."""
    ABORTED = "aborted"
    """The engine aborted a generation. The trajectory is withdrawn; the trace keeps the partial completion."""
    FAILED = "failed"
    """The world broke. The trajectory is withdrawn, since the policy did not cause it."""

    @property
    def is_truncated(self) -> bool:
        return not self.is_withdrawn and self not in _COMPLETE

    @property
    def is_limit(self) -> bool:
        """Whether a limit cut the trajectory."""
        return self in _LIMITS

    @property
    def is_withdrawn(self) -> bool:
        return self in (StopReason.ABORTED, StopReason.FAILED)


_COMPLETE = frozenset({StopReason.ANSWERED, StopReason.USER_DONE, StopReason.WORLD_DONE, StopReason.AGENT_ENDED})
_LIMITS = frozenset(
    {
        StopReason.TURN_LIMIT,
        StopReason.USER_TURN_LIMIT,
        StopReason.TOOL_CALL_LIMIT,
        StopReason.TOKEN_LIMIT,
        StopReason.TIME_LIMIT,
    }
)


@dataclass(kw_only=True, slots=True)
class Reward:
    """The trajectory's reward and its components."""

    __pydantic_config__ = FINITE

    score: float
    """The weighted sum, with the penalty subtracted."""
    parts: dict[str, float] = field(default_factory=dict[str, float])
    turns: list[float] = field(default_factory=list[float])
    """The weighted reward of each turn, contained in `score`; empty where no turn has one."""
    penalty: float = 0.0
    """What the filters subtracted, as a positive number."""

    def reaches(self, threshold: float) -> bool:
        """Whether the score is at least `threshold`, up to rounding."""
        return self.score >= threshold - ROUNDING


@dataclass(kw_only=True, slots=True)
class Failure:
    """Why a trajectory was withdrawn."""

    kind: str
    message: str
