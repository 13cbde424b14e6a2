"""Append tool results and user messages to the context: cut to the token budget, with a budget line if configured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.environment.sections import ThinkingContext
from mcp_rollout.rollout.loop.clock import Clock
from mcp_rollout.rollout.loop.limits import Limits
from mcp_rollout.rollout.loop.results import OVERFLOW_TOKENS, rule_for, shorten
from mcp_rollout.rollout.loop.spans import NO_SPANS, Spans
from mcp_rollout.rollout.loop.thinking import without_thinking
from mcp_rollout.rollout.trace.events import Mark, MarkKind
from mcp_rollout.rollout.trace.record import StopReason, Trace
from mcp_rollout.rollout.types import Edit, Message, TokenBuilder

ATTEMPTS = 3
"""A text may have a few tokens more inside a message than alone, so a cut message is measured again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Context:
    """Grows the context of one trajectory."""

    environment: Environment
    limits: Limits
    tokens: TokenBuilder
    schemas: Sequence[Mapping[str, Any]]
    """The tools of the prompt."""
    callable_schemas: Sequence[Mapping[str, Any]]
    """With the task's later tools, which a completion is parsed by."""
    spans: Spans = NO_SPANS
    clock: Clock = field(default_factory=Clock)

    def add(self, trace: Trace, messages: list[Message]) -> None:
        """Record the messages, and append them to the context unless the trajectory ends here.

        Sets the stop reason where a limit is reached or the messages do not fit.
        """
        base = self._base(trace, messages)
        trace.stop_reason = trace.stop_reason or self.limits.reached(trace, freed=len(trace.context) - len(base))
        try:
            if trace.stop_reason is None:
                self._render(trace, messages, base)
        finally:  # recorded even if the chat template raises
            trace.messages += messages
            trace.rendered += messages

    def _render(self, trace: Trace, messages: list[Message], base: list[int]) -> None:
        """Render the messages after `base`, cut where they do not fit; sets the stop reason where they never do.

        `messages` is updated in place to what the policy reads.
        """
        line = self.limits.budget_line(trace) if self.limits.tell_budget else ""
        room = self.limits.tokens_left(trace) + len(trace.context) - len(base)
        for attempt in range(ATTEMPTS):
            shown = [*messages[:-1], with_line(messages[-1], line)]
            excess, take = self._rendered(trace, shown, base, room)
            if excess <= 0:
                # In place: the caller records this list, and the record has to have what the policy reads.
                messages[:] = shown
                note_shown(trace, messages, cut=attempt > 0)
                take()
                return
            if not self._cut(trace, messages, excess):
                break
        trace.turns[-1].marks.append(Mark(kind=MarkKind.RESULT_OVERFLOW))
        trace.stop_reason = StopReason.TOKEN_LIMIT

    def _rendered(
        self, trace: Trace, shown: Sequence[Message], base: list[int], room: int
    ) -> tuple[int, Callable[[], None]]:
        """By how many tokens the messages exceed the room, and what takes them into the context."""
        edit = self.tokens.messages(base, trace.rendered, shown, self.schemas)
        left = room - (len(edit.inserted) + len(edit.appended) - edit.removed)
        excess = 0 if left >= 1 else OVERFLOW_TOKENS - left
        return excess, partial(self._take, trace, base, edit)

    def _take(self, trace: Trace, base: list[int], edit: Edit) -> None:
        if len(base) == len(trace.context):
            trace.add_context(edit)
            return
        # Not append-only: the next generation continues other ids, so it belongs to a new segment, with these ids as
        # its prompt and without loss.
        kept = base[: len(base) - edit.removed]
        trace.take_back(edit.removed)
        trace.open([*kept, *edit.inserted, *edit.appended], images=trace.images + edit.images)

    def _base(self, trace: Trace, messages: Sequence[Message]) -> list[int]:
        """The context to which the messages are appended: without earlier thinking where the environment drops it."""
        new_user_turn = messages[-1]["role"] == "user"
        # Chat templates such as Qwen3's drop earlier thinking when a new user message arrives. The context then no
        # longer only grows, so a new segment begins.
        if new_user_turn and self.environment.thinking.context is ThinkingContext.DROP_PREVIOUS:
            return without_thinking(trace, self.tokens)
        return trace.context

    def _cut(self, trace: Trace, messages: list[Message], excess: int) -> bool:
        """Cut `excess` tokens from the results, the longest first; False if too little of them would be left."""
        results, tokens = self.environment.results, self.tokens
        sizes = {
            index: len(tokens.encode_text(message["content"]))
            for index, message in enumerate(messages)
            if message["role"] == "tool" and isinstance(message["content"], str)
        }
        # Each result keeps this much: the policy could take a shorter fragment for the whole answer.
        spare = {index: max(0, size - OVERFLOW_TOKENS) for index, size in sizes.items()}
        if sum(spare.values()) < excess:
            return False
        for index in sorted(spare, key=lambda index: -spare[index]):
            taken = min(excess, spare[index])
            if taken == 0:
                break
            message, event = messages[index], trace.turns[-1].tools[index]
            keep = rule_for(event.name, results).keep
            text, cut = shorten(message["content"], sizes[index] - taken, keep, tokens)
            messages[index] = message | {"content": text}
            event.cut_tokens += cut
            excess -= taken
        return True


def with_line(message: Message, line: str) -> Message:
    """The message with `line` appended, where that is not empty."""
    if not line:
        return message
    content = message["content"]
    if isinstance(content, str):
        return message | {"content": f"{content}\n{line}"}
    return message | {"content": [*content, {"type": "text", "text": line}]}


def note_shown(trace: Trace, messages: Sequence[Message], *, cut: bool) -> None:
    """Record the text that the policy reads of each result, and mark the turn if results were cut to fit."""
    turn = trace.turns[-1]
    if cut:
        turn.marks.append(Mark(kind=MarkKind.RESULT_CUT))
    # Not strict: a message of the user or the agent may follow the results, or be the only one.
    for event, message in zip(turn.tools, messages, strict=False):
        content = message["content"]
        if message["role"] == "tool" and isinstance(content, str) and content != event.text:
            event.shown = content
