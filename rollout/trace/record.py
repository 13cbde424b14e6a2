"""The record of a trajectory. `Trace` owns the token ids, the loss mask and the logprobs; all else are views."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from gateway.types import Content, ContentKind, Fault, Heard, ToolResult
from rollout.task import Origin, Task
from rollout.types import Call, Completion, Edit, FinishReason, Message, Parsed, Shown

SCHEMA_VERSION = 1


class StopReason(StrEnum):
    """How a trajectory ended. One shape for every outcome."""

    ANSWERED = "answered"
    """The policy stopped calling tools and there is no user to answer."""
    USER_DONE = "user_done"
    TURN_LIMIT = "turn_limit"
    USER_TURN_LIMIT = "user_turn_limit"
    TOOL_CALL_LIMIT = "tool_call_limit"
    TOKEN_LIMIT = "token_limit"
    TIME_LIMIT = "time_limit"
    ABORTED = "aborted"
    """The engine was told to stop in mid-generation; withdrawn, its partial tokens kept in the trace."""
    FAILED = "failed"
    """The world broke; the trajectory says nothing about the policy and is withdrawn."""

    @property
    def is_truncated(self) -> bool:
        return not self.is_withdrawn and self not in (StopReason.ANSWERED, StopReason.USER_DONE)

    @property
    def is_withdrawn(self) -> bool:
        return self in (StopReason.ABORTED, StopReason.FAILED)


class SpanKind(StrEnum):
    THINKING = "thinking"
    COMPLETION = "completion"
    """Sampled tokens after the thinking."""
    CONTEXT = "context"
    """Rendered tool or user messages, and boundary tokens."""


@dataclass(kw_only=True, slots=True)
class Span:
    """A run of response tokens of one kind, `[start, end)` counted from the first response token."""

    kind: SpanKind
    turn: int
    start: int
    end: int


@dataclass(kw_only=True, slots=True)
class Block:
    """Binary content of a result; it is kept itself where the policy was shown it, in the trace's messages."""

    kind: ContentKind
    mime_type: str | None
    uri: str | None
    size: int  # bytes
    sha256: str

    @classmethod
    def of(cls, content: Content) -> Block:
        digest = hashlib.sha256(content.data).hexdigest()
        return cls(
            kind=content.kind, mime_type=content.mime_type, uri=content.uri, size=len(content.data), sha256=digest
        )


@dataclass(kw_only=True, slots=True)
class ToolEvent:
    """One call and what came of it."""

    name: str
    arguments: dict[str, Any]
    text: str
    """The whole of it, a line for each block that is not text."""
    is_error: bool
    fault: Fault | None = None
    id: str | None = None
    reward: float | None = None
    elapsed_s: float = 0.0
    shown: str | None = None
    """What the policy read, where that is not `text`: a long text cut, or images beside it."""
    cut_tokens: int = 0
    coerced: dict[str, Any] = field(default_factory=dict[str, Any])
    """What was sent instead of strings in `arguments` that nearly fitted, by dotted path."""
    structured: dict[str, Any] | None = None
    """Structured content that `text` does not repeat."""
    blocks: list[Block] = field(default_factory=list[Block])


@dataclass(kw_only=True, slots=True)
class UserEvent:
    """One message of the user simulator."""

    seq: int
    message: str
    done: bool
    reward: float | None = None
    elapsed_s: float = 0.0


@dataclass(kw_only=True, slots=True)
class Turn:
    """One policy generation and what it caused."""

    content: str
    thinking: str
    finish_reason: FinishReason
    sampled: int
    """How many ids were sampled."""
    trimmed: list[int] = field(default_factory=list[int])
    """Sampled ids that the template dropped again when the context went on; in no training sample."""
    weights_version: tuple[int | None, int | None] = (None, None)
    generate_s: float = 0.0
    tools: list[ToolEvent] = field(default_factory=list[ToolEvent])
    user: UserEvent | None = None
    heard: Heard = field(default_factory=Heard)
    """What servers asked for and said within this turn's calls, the user simulator's included."""

    @property
    def reward(self) -> float:
        """Sum of the rewards that servers gave for this turn."""
        given = [event.reward for event in self.tools]
        given += [self.user.reward] if self.user else []
        return float(sum(reward for reward in given if reward is not None))


@dataclass(kw_only=True, slots=True)
class Reward:
    """The trajectory's reward and what it is made of."""

    score: float
    parts: dict[str, float] = field(default_factory=dict[str, float])
    turns: list[float] = field(default_factory=list[float])
    """What each turn earned by itself, weighed; a share of `score`. Empty where none did."""


@dataclass(kw_only=True, slots=True)
class Failure:
    """Why a trajectory was withdrawn."""

    kind: str
    message: str


@dataclass(kw_only=True, slots=True)
class Trace:
    """Everything about one trajectory, in the order in which it happened."""

    id: str
    task: Task
    origin: Origin
    messages: list[Message]
    prompt_ids: list[int] = field(default_factory=list[int])
    response_ids: list[int] = field(default_factory=list[int])
    loss_mask: list[int] = field(default_factory=list[int])  # [len(response_ids)], 1 where sampled
    logprobs: list[float] = field(default_factory=list[float])  # [len(response_ids)], 0.0 where not sampled
    has_logprobs: bool = True
    """False once an engine gave a completion without logprobs."""
    images: int = 0
    """How many of the messages' images are in the context: the first ones."""
    spans: list[Span] = field(default_factory=list[Span])
    turns: list[Turn] = field(default_factory=list[Turn])
    stop_reason: StopReason | None = None
    failure: Failure | None = None
    reward: Reward | None = None
    heard: Heard = field(default_factory=Heard)
    """The same, within the calls before and after the turns: reset, start, score."""
    lease_wait_s: float = 0.0
    elapsed_s: float = 0.0
    schema_version: int = SCHEMA_VERSION

    @classmethod
    def begin(cls, trajectory: str, task: Task, origin: Origin) -> Trace:
        return cls(id=trajectory, task=task, origin=origin, messages=[dict(message) for message in task.prompt])

    @property
    def context(self) -> list[int]:
        """What the policy sees next: prompt and response so far.  # [len(prompt_ids) + len(response_ids)]"""
        return self.prompt_ids + self.response_ids

    @property
    def is_withdrawn(self) -> bool:
        """Whether the trajectory says nothing about the policy: it did not end, or has no token to train on."""
        return self.stop_reason is None or self.stop_reason.is_withdrawn or not self.response_ids

    @property
    def opening(self) -> int:
        """How many of the messages were there before the first turn; a prompt may hold assistant messages too."""
        return len(self.messages) - sum(1 + len(turn.tools) + (turn.user is not None) for turn in self.turns)

    @property
    def user_turns(self) -> int:
        return sum(turn.user is not None for turn in self.turns)

    @property
    def tool_calls(self) -> int:
        return sum(len(turn.tools) for turn in self.turns)

    @property
    def tool_errors(self) -> int:
        return sum(event.is_error for turn in self.turns for event in turn.tools)

    def add_completion(self, completion: Completion, parsed: Parsed, edit: Edit, *, mask_thinking: bool) -> Turn:
        """Append sampled ids as they are. Masked thinking stays in the context and out of the loss."""
        self._apply(edit)
        thinking = min(parsed.thinking_tokens, len(edit.appended))
        start = len(self.response_ids)
        self.response_ids += edit.appended
        self.loss_mask += [0 if mask_thinking else 1] * thinking + [1] * (len(edit.appended) - thinking)
        if completion.logprobs is None:
            self.has_logprobs = False
        self.logprobs += completion.logprobs or [0.0] * len(edit.appended)
        turn = len(self.turns)
        self._span(SpanKind.THINKING, turn, start, start + thinking)
        self._span(SpanKind.COMPLETION, turn, start + thinking, len(self.response_ids))
        self.turns.append(
            Turn(
                content=parsed.content,
                thinking=parsed.thinking,
                finish_reason=completion.finish_reason,
                sampled=len(completion.ids),
                weights_version=completion.weights_version,
            )
        )
        self.messages.append(assistant_message(parsed))
        return self.turns[-1]

    def add_context(self, edit: Edit) -> None:
        """Append rendered messages; nobody sampled them, so mask and logprob are 0."""
        self._apply(edit)
        self.images += edit.images
        start = len(self.response_ids)
        self._append_unsampled(edit.appended)
        self._span(SpanKind.CONTEXT, len(self.turns) - 1, start, len(self.response_ids))

    def add_calls(
        self, calls: Sequence[Call], results: Sequence[ToolResult], shown: Sequence[Shown] | None = None
    ) -> list[Message]:
        """Record what the calls of this turn came to, and return the messages that tell the policy.

        Args:
            shown: what the policy is shown of each result; all of its text where this is None.
        """
        seen = shown or [Shown(text=result.text) for result in results]
        triples = list(zip(calls, results, seen, strict=True))
        self.turns[-1].tools += [tool_event(*triple) for triple in triples]
        return [tool_message(call, part.content) for call, _, part in triples]

    def fail(self, kind: str, message: str) -> None:
        self.stop_reason = StopReason.FAILED
        self.failure = Failure(kind=kind, message=message)

    def _apply(self, edit: Edit) -> None:
        if edit.removed:
            kept = len(self.response_ids) - edit.removed
            sampled = sum(self.loss_mask[kept:]) or any(
                span.kind is not SpanKind.CONTEXT and span.end > kept for span in self.spans
            )
            if sampled and self.turns:
                self.turns[-1].trimmed += self.response_ids[kept:]
            del self.response_ids[kept:], self.loss_mask[kept:], self.logprobs[kept:]
            for span in self.spans:
                span.end = min(span.end, kept)
            self.spans = [span for span in self.spans if span.start < span.end]
        start = len(self.response_ids)
        self._append_unsampled(edit.inserted)
        self._span(SpanKind.CONTEXT, len(self.turns) - 1, start, len(self.response_ids))

    def _append_unsampled(self, ids: list[int]) -> None:
        self.response_ids += ids
        self.loss_mask += [0] * len(ids)
        self.logprobs += [0.0] * len(ids)

    def _span(self, kind: SpanKind, turn: int, start: int, end: int) -> None:
        if start < end:
            self.spans.append(Span(kind=kind, turn=turn, start=start, end=end))


def assistant_message(parsed: Parsed) -> Message:
    """The completion as a chat message, thinking left out."""
    message: Message = {"role": "assistant", "content": parsed.content}
    if parsed.calls:
        message["tool_calls"] = [
            {"type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            | ({"id": call.id} if call.id is not None else {})
            for call in parsed.calls
        ]
    return message


def tool_event(call: Call, result: ToolResult, shown: Shown) -> ToolEvent:
    text = result.text
    structured = dict(result.structured) if result.structured is not None else None
    return ToolEvent(
        name=call.name,
        arguments=call.arguments,
        id=call.id,
        text=text,
        is_error=result.is_error,
        fault=result.fault,
        reward=result.reward,
        elapsed_s=result.elapsed_s,
        shown=shown.text if shown.text != text else None,
        cut_tokens=shown.cut_tokens,
        coerced=dict(result.coerced),
        structured=None if _repeats(text, structured) else structured,
        blocks=[Block.of(block) for block in result.content if block.data],
    )


def _repeats(text: str, structured: dict[str, Any] | None) -> bool:
    """Servers repeat structured content as JSON text, and put what is no object under `result`."""
    if structured is None:
        return True
    if text in (structured.get("result"), str(structured.get("result"))):
        return True
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return said == structured or said == structured.get("result")


def tool_message(call: Call, content: str | list[dict[str, Any]]) -> Message:
    message: Message = {"role": "tool", "name": call.name, "content": content}
    return message | ({"tool_call_id": call.id} if call.id is not None else {})
