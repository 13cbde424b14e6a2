"""When a trajectory ends, decided from its trace alone."""

from __future__ import annotations

from dataclasses import dataclass

from rollout.environment.config import DEFAULT_ASSISTANT_TURNS, LimitsConfig
from rollout.errors import PromptTooLong
from rollout.trace.record import StopReason, Trace


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Bounds of one trajectory. Every field but `response_tokens` may come from the environment."""

    response_tokens: int
    """Tokens of the context behind the opening prompt: sampled, tool and user tokens together, dropped thinking not."""
    prompt_tokens: int | None = None
    context_tokens: int | None = None
    """Prompt and response together, where the engine bounds them."""
    assistant_turns: int = DEFAULT_ASSISTANT_TURNS
    user_turns: int | None = None
    tool_calls: int | None = None
    parallel_calls: int = 16
    tokens_per_turn: int | None = None
    wall_clock_s: float = 1800.0
    """Counted from the moment the lease is granted."""
    tell_budget: bool = False

    @classmethod
    def of(
        cls,
        own: LimitsConfig,
        *,
        response_tokens: int,
        prompt_tokens: int | None = None,
        context_tokens: int | None = None,
        assistant_turns: int | None = None,
        user_turns: int | None = None,
    ) -> Limits:
        """The environment's own limits; where it has none, the turns given here, else 15 assistant turns."""
        return cls(
            prompt_tokens=prompt_tokens,
            context_tokens=context_tokens,
            response_tokens=response_tokens,
            assistant_turns=own.assistant_turns or assistant_turns or DEFAULT_ASSISTANT_TURNS,
            user_turns=own.user_turns or user_turns,
            tool_calls=own.tool_calls,
            parallel_calls=own.parallel_calls,
            tokens_per_turn=own.tokens_per_turn,
            wall_clock_s=own.wall_clock_s,
            tell_budget=own.tell_budget,
        )

    def check_prompt(self, trace: Trace) -> None:
        """Raises `PromptTooLong` where the prompt exceeds `prompt_tokens`, or fills the context by itself."""
        length = len(trace.prompt_ids)
        if self.prompt_tokens is not None and length > self.prompt_tokens:
            raise PromptTooLong(f"the prompt has {length} tokens, the limit is {self.prompt_tokens}")
        if self.context_tokens is not None and length >= self.context_tokens:
            raise PromptTooLong(f"the prompt has {length} tokens, the engine's context {self.context_tokens}")

    def reached(self, trace: Trace, *, freed: int = 0) -> StopReason | None:
        """The limit that forbids another generation, if one does; `freed` tokens are about to leave the context."""
        if self.tokens_left(trace) + freed <= 0:
            return StopReason.TOKEN_LIMIT
        if len(trace.turns) >= self.assistant_turns:
            return StopReason.TURN_LIMIT
        if self.user_turns is not None and trace.user_turns >= self.user_turns:
            return StopReason.USER_TURN_LIMIT
        if self.tool_calls is not None and trace.tool_calls >= self.tool_calls:
            return StopReason.TOOL_CALL_LIMIT
        return None

    def tokens_left(self, trace: Trace) -> int:
        left = self.response_tokens - trace.tokens_used
        return left if self.context_tokens is None else min(left, self.context_tokens - len(trace.context))

    def completion_tokens(self, trace: Trace) -> int:
        """Most tokens that the next generation may have."""
        left = self.tokens_left(trace)
        return left if self.tokens_per_turn is None else min(left, self.tokens_per_turn)

    def budget_line(self, trace: Trace) -> str:
        """What is left, for the policy to read; tokens as they are before the message that ends in this line."""
        left = [
            (self.assistant_turns - len(trace.turns), "turns"),
            (self.tokens_left(trace), "tokens"),
            *([] if self.tool_calls is None else [(self.tool_calls - trace.tool_calls, "tool calls")]),
            *([] if self.user_turns is None else [(self.user_turns - trace.user_turns, "user messages")]),
        ]
        return "[Left: " + ", ".join(f"{amount} {what}" for amount, what in left) + "]"
