"""The record of a trajectory. `Trace` owns the token ids, the loss mask and the logprobs; all else are views."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from gateway.types import ServerEvents, ToolResult
from rollout.environment.task import Origin, Task
from rollout.trace.events import ToolEvent, UserEvent, tool_event, tool_message
from rollout.trace.marks import Mark
from rollout.trace.segment import Segment, Span, SpanKind, runs
from rollout.types import Call, Completion, Edit, FinishReason, Message, Parsed, Shown

__all__ = ["Failure", "Reward", "Segment", "Span", "SpanKind", "StopReason", "ToolEvent", "Trace", "Turn", "UserEvent"]

SCHEMA_VERSION = 1
ROUNDING = 1e-9
"""By how much scores may fall short of what they are without rounding."""


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
    FILTERED = "filtered"
    """A filter whose action is `end` found something in the last turn."""
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


@dataclass(kw_only=True, slots=True)
class Turn:
    """One policy generation and what it caused."""

    content: str
    thinking: str
    finish_reason: FinishReason
    sampled: int
    """How many ids were sampled."""
    generations: int = 1
    """How often the engine was asked: twice where the turn went on behind its thinking budget."""
    trimmed: list[int] = field(default_factory=list[int])
    """Sampled ids that the template dropped again when the context went on; in no training sample."""
    weights_version: tuple[int | None, int | None] = (None, None)
    generate_s: float = 0.0
    tools: list[ToolEvent] = field(default_factory=list[ToolEvent])
    user: UserEvent | None = None
    heard: ServerEvents = field(default_factory=ServerEvents)
    """What servers asked for and said within this turn's calls, the user simulator's included."""
    marks: list[Mark] = field(default_factory=list[Mark])
    """What went wrong in this turn, and what the filters did about it."""

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
    """With the penalty subtracted."""
    parts: dict[str, float] = field(default_factory=dict[str, float])
    turns: list[float] = field(default_factory=list[float])
    """What each turn earned by itself, weighed; a share of `score`. Empty where none did."""
    penalty: float = 0.0
    """What the filters subtracted, as a positive number."""

    def reaches(self, threshold: float) -> bool:
        """Whether the score is at least this much, but for what adding rounds off."""
        return self.score >= threshold - ROUNDING


@dataclass(kw_only=True, slots=True)
class Failure:
    """Why a trajectory was withdrawn."""

    kind: str
    message: str


@dataclass(kw_only=True, slots=True)
class Trace(Segment):
    """Everything about one trajectory, in the order in which it happened.

    Prompt, response, mask, logprobs and spans are those of the last segment; only a thinking policy that drops earlier
    thinking makes more than one.
    """

    id: str
    task: Task
    origin: Origin
    messages: list[Message]
    earlier: list[Segment] = field(default_factory=list[Segment])
    """The segments before the last one."""
    has_logprobs: bool = True
    """False once an engine gave a completion without logprobs."""
    turns: list[Turn] = field(default_factory=list[Turn])
    stop_reason: StopReason | None = None
    failure: Failure | None = None
    reward: Reward | None = None
    heard: ServerEvents = field(default_factory=ServerEvents)
    """The same, within the calls before and after the turns: reset, start, score."""
    lease_wait_s: float = 0.0
    elapsed_s: float = 0.0
    schema_version: int = SCHEMA_VERSION

    # Kept up as the trace grows, so that no turn has to go through the whole of it; not in the record.
    context: Annotated[list[int], Field(exclude=True)] = field(init=False, compare=False, repr=False)
    """What the policy sees next: prompt and response so far. Not to be changed by whoever reads it."""
    tool_calls: Annotated[int, Field(exclude=True)] = field(init=False, compare=False, repr=False)
    user_turns: Annotated[int, Field(exclude=True)] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        self.context = self.prompt_ids + self.response_ids
        self.tool_calls = sum(len(turn.tools) for turn in self.turns)
        self.user_turns = sum(turn.user is not None for turn in self.turns)

    @classmethod
    def begin(cls, trajectory: str, task: Task, origin: Origin) -> Trace:
        return cls(id=trajectory, task=task, origin=origin, messages=[dict(message) for message in task.prompt])

    def take(self, task: Task) -> None:
        """Put this task, and its prompt, in the place of the one that the trace began with; before the first turn."""
        self.task, self.messages = task, [dict(message) for message in task.prompt]

    @property
    def segments(self) -> list[Segment]:
        """All segments in which something was sampled, in order."""
        return [segment for segment in (*self.earlier, self) if segment.turns_sampled]

    @property
    def tokens_used(self) -> int:
        """Tokens of the context behind the opening prompt; what the response's budget is spent on."""
        opening = self.earlier[0] if self.earlier else self
        return len(self.context) - len(opening.prompt_ids)

    @property
    def is_withdrawn(self) -> bool:
        """Whether the trajectory says nothing about the policy: it did not end, or never had a turn."""
        return self.stop_reason is None or self.stop_reason.is_withdrawn or not (self.turns or self.response_ids)

    @property
    def ends_unheard(self) -> bool:
        """Whether the last turn was said to nobody: a limit cut it, or a filter ended the trajectory before."""
        last = self.turns[-1] if self.turns else None
        if last is None or last.tools or last.user is not None:
            return False
        return self.stop_reason is not StopReason.ANSWERED

    @property
    def opening(self) -> int:
        """How many of the messages were there before the first turn; a prompt may hold assistant messages too."""
        return len(self.messages) - sum(1 + len(turn.tools) + (turn.user is not None) for turn in self.turns)

    @property
    def tool_errors(self) -> int:
        return sum(event.is_error for turn in self.turns for event in turn.tools)

    def open(self, prompt_ids: list[int], *, images: int | None = None) -> None:
        """Begin a segment with this prompt; the one that was played, if any, is complete."""
        if self.response_ids:
            self.earlier.append(
                Segment(
                    prompt_ids=self.prompt_ids,
                    response_ids=self.response_ids,
                    loss_mask=self.loss_mask,
                    logprobs=self.logprobs,
                    images=self.images,
                    spans=self.spans,
                )
            )
        self.prompt_ids, self.response_ids, self.loss_mask, self.logprobs, self.spans = prompt_ids, [], [], [], []
        self.images = self.images if images is None else images
        self.context = list(prompt_ids)

    def add_completion(self, completion: Completion, parsed: Parsed, edit: Edit, *, mask_thinking: bool) -> Turn:
        """Append sampled ids as they are. Masked thinking stays in the context and out of the loss."""
        self._apply(edit)
        turn, ids = len(self.turns), edit.appended
        if completion.logprobs is None:
            self.has_logprobs = False
        logprobs = completion.logprobs or [0.0] * len(ids)
        in_loss = {SpanKind.COMPLETION: True, SpanKind.THINKING: not mask_thinking, SpanKind.FORCED: False}
        for kind, begin, end in runs(len(ids), parsed.thoughts, completion.forced):
            own = logprobs[begin:end] if kind.is_sampled else None
            self.add_span(kind, turn, ids[begin:end], own, in_loss=in_loss[kind])
        self.context += ids
        begin, end = completion.forced or (0, 0)
        self.turns.append(
            Turn(
                content=parsed.content,
                thinking=parsed.thinking,
                finish_reason=completion.finish_reason,
                sampled=len(completion.ids) - (end - begin),
                generations=completion.generations,
                weights_version=completion.weights_version,
            )
        )
        self.messages.append(assistant_message(parsed))
        return self.turns[-1]

    def add_context(self, edit: Edit) -> None:
        """Append rendered messages; nobody sampled them, so mask and logprob are 0."""
        self._apply(edit)
        self.images += edit.images
        self.add_span(SpanKind.CONTEXT, len(self.turns) - 1, edit.appended)
        self.context += edit.appended

    def add_calls(
        self,
        calls: Sequence[Call],
        results: Sequence[ToolResult],
        shown: Sequence[Shown] | None = None,
        servers: Sequence[str | None] | None = None,
    ) -> list[Message]:
        """Record what the calls of this turn came to, and return the messages that tell the policy.

        Args:
            shown: what the policy is shown of each result; all of its text where this is None.
            servers: whose tool each call was for.
        """
        seen = shown or [Shown(text=result.text) for result in results]
        owners = servers or [None] * len(calls)
        events = [tool_event(*each) for each in zip(calls, results, seen, owners, strict=True)]
        self.turns[-1].tools += events
        self.tool_calls += len(events)
        return [tool_message(call, part.content) for call, part in zip(calls, seen, strict=True)]

    def add_user(self, event: UserEvent) -> None:
        """Record what the user said to this turn."""
        self.turns[-1].user = event
        self.user_turns += 1

    def fail(self, kind: str, message: str) -> None:
        self.stop_reason = StopReason.FAILED
        self.failure = Failure(kind=kind, message=message)

    def take_back(self, count: int) -> None:
        """Drop the last ids of the context; what was sampled of them stays beside the turn, as `trimmed`."""
        if count:
            trimmed = self.trim(count)
            if self.turns:
                self.turns[-1].trimmed += trimmed
            del self.context[len(self.context) - count :]

    def _apply(self, edit: Edit) -> None:
        self.take_back(edit.removed)
        self.add_span(SpanKind.CONTEXT, len(self.turns) - 1, edit.inserted)
        self.context += edit.inserted


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
