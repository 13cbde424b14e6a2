"""Limits of a trajectory and the stop reasons that they cause, decided from the trace alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

import anyio

from mcp_rollout.rollout.environment.config import DEFAULT_ASSISTANT_TURNS
from mcp_rollout.rollout.environment.sections import LimitsConfig
from mcp_rollout.rollout.errors import PromptTooLong
from mcp_rollout.rollout.trace.record import StopReason, Trace

T = TypeVar("T")


def is_time_over() -> bool:
    """Whether the deadline of the trajectory, or of anything around it, has passed.

    A shielded wait, such as a generation that cannot be aborted, ends after it without an exception.
    """
    return anyio.current_effective_deadline() <= anyio.current_time()


def cancellations() -> int:
    """How often the current task has been asked to end.

    A CancelledError without a further request is the fault of what raised it: an await of something cancelled. Passed
    on, it would end the task without a word.
    """
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


async def shielded(work: Awaitable[T]) -> T:
    """Await `work` to its end, also where the trajectory's deadline passes meanwhile."""
    with anyio.CancelScope(shield=True):
        return await work
    raise AssertionError("unreachable: this scope is not cancelled, so it suppresses nothing")


class Limits(LimitsConfig):
    """Bounds of one trajectory: those of its environment, and the token bounds of the run and its engine."""

    response_tokens: int
    """Tokens of the context after the opening prompt: sampled, tool and user tokens, without dropped thinking."""
    prompt_tokens: int | None = None
    context_tokens: int | None = None
    """Bound of the engine on prompt and response together."""
    # The model is frozen, so a field may have a narrower type than in the base class.
    assistant_turns: int = DEFAULT_ASSISTANT_TURNS  # pyright: ignore[reportIncompatibleVariableOverride]

    @classmethod
    def of(
        cls,
        own: LimitsConfig,
        *,
        assistant_turns: int | None = None,
        user_turns: int | None = None,
        **tokens: int | None,
    ) -> Limits:
        """Merge the limits on turns: the environment's count, else the trainer's, else 15 assistant turns.

        Args:
            own: the environment's limits.
            assistant_turns: the trainer's limit on policy turns (verl's `multi_turn.max_assistant_turns`).
            user_turns: the trainer's limit on user turns (verl's `multi_turn.max_user_turns`).
            tokens: `response_tokens`, and `prompt_tokens` and `context_tokens` where they are bounded.
        """
        turns = {
            "assistant_turns": own.assistant_turns or assistant_turns or DEFAULT_ASSISTANT_TURNS,
            "user_turns": own.user_turns or user_turns,
        }
        return cls.model_validate(own.model_dump() | turns | tokens)

    def check_prompt(self, trace: Trace) -> None:
        """Raises PromptTooLong where the prompt exceeds `prompt_tokens`, or leaves no room in the context."""
        length = len(trace.prompt_ids)
        if self.prompt_tokens is not None and length > self.prompt_tokens:
            raise PromptTooLong(f"the prompt has {length} tokens, the limit is {self.prompt_tokens}")
        if self.context_tokens is not None and length >= self.context_tokens:
            raise PromptTooLong(f"the prompt has {length} tokens, the engine's context {self.context_tokens}")

    def reached(self, trace: Trace, *, freed: int = 0) -> StopReason | None:
        """The limit that forbids another generation, or None; `freed` tokens are about to leave the context."""
        if self.tokens_left(trace) + freed <= 0:
            return StopReason.TOKEN_LIMIT
        if trace.turns_taken >= self.assistant_turns:
            return StopReason.TURN_LIMIT
        most = self.turns_per_user_message
        if most is not None and trace.turns_taken >= most:
            last = [turn for turn in trace.turns[-most - trace.uncounted :] if turn.counts][-most:]
            if not any(turn.user for turn in last):
                return StopReason.TURN_LIMIT
        if self.user_turns is not None and trace.user_turns >= self.user_turns:
            return StopReason.USER_TURN_LIMIT
        if self.tool_calls is not None and trace.tool_calls >= self.tool_calls:
            return StopReason.TOOL_CALL_LIMIT
        return None

    def tokens_left(self, trace: Trace) -> int:
        """Tokens that fit before the response or the engine's context is full."""
        left = self.response_tokens - trace.tokens_used
        return left if self.context_tokens is None else min(left, self.context_tokens - len(trace.context))

    def completion_tokens(self, trace: Trace) -> int:
        """The most tokens that the next generation may have."""
        left = self.tokens_left(trace)
        return left if self.tokens_per_turn is None else min(left, self.tokens_per_turn)

    def budget_line(self, trace: Trace) -> str:
        """The remaining budget as a line of text; its tokens do not count the message that the line is added to."""
        left = [
            (self.assistant_turns - trace.turns_taken, "turns"),
            (self.tokens_left(trace), "tokens"),
            *([] if self.tool_calls is None else [(self.tool_calls - trace.tool_calls, "tool calls")]),
            *([] if self.user_turns is None else [(self.user_turns - trace.user_turns, "user messages")]),
        ]
        return "[Left: " + ", ".join(f"{amount} {unit}" for amount, unit in left) + "]"
