"""What is noted about a turn beside its text: what went wrong in it, and what a filter did about that."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from rollout.environment.config import FilterAction


class MarkKind(StrEnum):
    VOID = "void"
    """Neither a readable call nor an answer; `detail` says why (SimpleTIR, arXiv 2509.02479)."""
    REPEATED_CALL = "repeated_call"
    LONG_THINKING = "long_thinking"
    MALFORMED_CALL = "malformed_call"
    UNKNOWN_TOOL = "unknown_tool"
    CUT_CALL = "cut_call"
    """The length limit came in the middle of a call."""
    CALL_IN_THINKING = "call_in_thinking"
    """A call among the thoughts is a thought: not sent."""
    NOT_SENT = "not_sent"
    """Calls beyond the parallel limit."""
    RESULT_CUT = "result_cut"
    """Results were shortened to what the token budget still held."""
    RESULT_OVERFLOW = "result_overflow"
    """Results or the user's message did not fit into the token budget, not even shortened; the trajectory ended."""
    THINKING_CLOSED = "thinking_closed"
    """The thinking budget ended the thought."""


@dataclass(kw_only=True, slots=True)
class Mark:
    """One note about a turn."""

    kind: MarkKind
    detail: str = ""
    action: FilterAction | None = None
    """What a filter did about it; None for what is noted only."""
