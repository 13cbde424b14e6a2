"""The record of a trajectory. `Trace` owns the token ids, the loss mask and the logprobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from itertools import islice
from typing import Annotated, ClassVar

from pydantic import Field

from mcp_rollout.gateway.errors import WorldLost
from mcp_rollout.gateway.server_events import ServerEvents
from mcp_rollout.gateway.types import ToolResult
from mcp_rollout.rollout.environment.sections import AgentConfig
from mcp_rollout.rollout.environment.task import Origin, Task
from mcp_rollout.rollout.process import exempt
from mcp_rollout.rollout.trace.events import (
    CheckEvent,
    Mark,
    MarkKind,
    ToolEvent,
    UserEvent,
    call_message,
    tool_message,
)
from mcp_rollout.rollout.trace.outcome import Failure, Reward, StopReason, StrategyRecord
from mcp_rollout.rollout.trace.segment import FINITE, Id, Place, Segment, Span, SpanKind, runs
from mcp_rollout.rollout.types import Attempt, Call, Completion, Edit, FinishReason, Message, Parsed, Shown

__all__ = ["Failure", "Reward", "Segment", "Span", "SpanKind", "StopReason", "ToolEvent", "Trace", "Turn", "UserEvent"]

SCHEMA_VERSION = 4


@dataclass(kw_only=True)
class Turn:
    """One policy generation and what it caused."""

    __pydantic_config__ = FINITE

    content: str
    thinking: str
    finish_reason: FinishReason
    sampled: int
    """Number of sampled ids."""
    begins_at: Place
    """Where the policy's message is among the trace's. The results follow, a message for each of `tools`, in order, and
    then what the user or the agent said, if anything."""
    generations: int = 1
    """Number of engine requests: 2 where the turn continued after its thinking budget."""
    trimmed: list[Id] = field(default_factory=list[int])
    """Sampled ids that the template removed when the context continued; they are in no training sample."""
    weights_version: tuple[int | None, int | None] = (None, None)
    request_ids: list[str] = field(default_factory=list[str])
    """The engine's ids of the requests, where it is known which ids it used."""
    seeds: list[int] = field(default_factory=list[int])
    """The sampling seed of each request, where requests have one."""
    attempts: list[Attempt] = field(default_factory=list[Attempt])
    """How many ids each version of the weights sampled, in order; empty where the engine's client does not say."""
    began_at: float = 0.0
    """Seconds since 1970 when the generation was requested."""
    generate_s: float = 0.0
    tools: list[ToolEvent] = field(default_factory=list[ToolEvent])
    unreadable: ClassVar[Sequence[ToolEvent]] = ()
    """Calls that could not be read, where `tools` is without them: for reward functions. Not serialised."""
    user: UserEvent | None = None
    agent_message: str = ""
    """What the environment's agent, or a compaction that asks for a summary, said to the policy after the turn, within
    the user's message if there is one."""
    server_events: ServerEvents = field(default_factory=ServerEvents)
    """Requests and notifications from servers within this turn's calls, including those to the user simulator."""
    marks: list[Mark] = field(default_factory=list[Mark])
    """Problems of this turn and the filters' actions."""

    @property
    def versions(self) -> list[int | None]:
        """The version of the weights by sampled id, as far as it is known; attempts that miss ids tell none."""
        found = [attempt.weights_version for attempt in self.attempts for _ in range(attempt.tokens)]
        first, last = self.weights_version
        return found if len(found) >= self.sampled else [first if first == last else None] * self.sampled

    @property
    def is_summary(self) -> bool:
        """Whether the policy was asked for a summary, to compact its context; no turn of the world's."""
        return any(mark.kind is MarkKind.COMPACTED for mark in self.marks)

    @property
    def counts(self) -> bool:
        """Whether the turn counts against limits: no summary, and not beside a program's conversation."""
        return not any(mark.kind in (MarkKind.COMPACTED, MarkKind.BESIDE) for mark in self.marks)

    @property
    def reward(self) -> float:
        """Sum of the rewards that servers gave for this turn."""
        given = [event.reward for event in self.tools]
        given += [self.user.reward] if self.user else []
        return float(sum(reward for reward in given if reward is not None))


@dataclass(kw_only=True, slots=True)
class Trace(Segment):
    """Everything about one trajectory, in order.

    The inherited fields are those of the last segment. Only an environment that drops earlier thinking, rolls out
    single turns or compacts contexts has more than one segment.
    """

    id: str
    task: Task
    origin: Origin
    messages: list[Message]
    agent: AgentConfig | None = None
    """The environment's agent and its arguments; None for the built-in one."""
    earlier: list[Segment] = field(default_factory=list[Segment])
    """The segments before the last one."""
    has_logprobs: bool = True
    """False if a completion came without logprobs."""
    turns: list[Turn] = field(default_factory=list[Turn])
    stop_reason: StopReason | None = None
    failure: Failure | None = None
    reward: Reward | None = None
    server_events: ServerEvents = field(default_factory=ServerEvents)
    """Requests and notifications from servers within the calls before and after the turns: reset, start, score."""
    setup: list[ToolEvent] = field(default_factory=list[ToolEvent])
    """The harness's calls that prepared the world, before the first turn; no message has them."""
    checks: list[CheckEvent] = field(default_factory=list[CheckEvent])
    """The harness's calls that examined the world after the last turn; no message has them."""
    strategy: StrategyRecord = field(default_factory=StrategyRecord)
    control_text: int = 0
    """Spellings of control tokens in the texts of messages and of tools' definitions. They are text in the ids, too."""
    run: str = ""
    """Name of the run record, which has what all trajectories of an environment in a run share."""
    worlds_lost: Annotated[int, Field(exclude=True)] = field(default=0, repr=False, metadata={"recorded": False})
    """Attempts before this one whose world was lost. Not serialised: each has a trace of its own."""
    began_at: float = 0.0
    """Seconds since 1970."""
    lease_wait_s: float = 0.0
    elapsed_s: float = 0.0
    schema_version: int = SCHEMA_VERSION

    # Derived values, updated as the trace grows so that a turn costs no pass over the whole trace. Not serialised.
    context: Annotated[list[int], Field(exclude=True)] = field(init=False, compare=False, repr=False)
    """Ids that the next generation continues: prompt and response so far. Read-only for callers."""
    rendered: Annotated[list[Message], Field(exclude=True)] = field(init=False, compare=False, repr=False)
    """The messages that these ids are."""
    begins: Annotated[dict[int, tuple[int, int]], Field(exclude=True)] = field(init=False, compare=False, repr=False)
    """Where a turn of theirs begins in both: in `context` and in `rendered`."""
    tool_calls: Annotated[int, Field(exclude=True)] = field(init=False, compare=False, repr=False)
    user_turns: Annotated[int, Field(exclude=True)] = field(init=False, compare=False, repr=False)
    uncounted: Annotated[int, Field(exclude=True)] = field(init=False, compare=False, repr=False)
    """Turns that count against no limit."""

    def __post_init__(self) -> None:
        self.context, self.rendered, self.begins = self.prompt_ids + self.response_ids, [], {}
        self._exempt_numbers()
        self.tool_calls = sum(len(turn.tools) for turn in self.turns)
        self.user_turns = sum(turn.user is not None for turn in self.turns)
        self.uncounted = sum(not turn.counts for turn in self.turns)

    @classmethod
    def begin(cls, trajectory: str, task: Task, origin: Origin) -> Trace:
        return cls(id=trajectory, task=task, origin=origin, messages=[dict(message) for message in task.prompt])

    def take(self, task: Task) -> None:
        """Replace the task and the prompt; only before the first turn."""
        self.task, self.messages = task, [dict(message) for message in task.prompt]

    def begin_again(self, trajectory: str) -> None:
        """Become the next attempt under another id, after this one, which failed, was stored."""
        assert self.failure is not None
        is_lost = self.failure.kind == WorldLost.code
        diverged = self.strategy.diverged if is_lost else self.failure.message
        lost_s = self.strategy.lost_s + self.elapsed_s
        # In place: the trajectory's policy reads images from this list.
        self.messages[:] = [dict(message) for message in self.task.prompt]
        origin = self.origin.model_copy(
            update={"attempt": self.origin.attempt + 1, "parent": None, "branched_at": None}
        )
        strategy = StrategyRecord(use=self.strategy.use, diverged=diverged, lost_s=lost_s)
        # In place: the caller of `roll_out` and the policy hold this object.
        Trace.__init__(
            self,
            id=trajectory,
            task=self.task,
            origin=origin,
            messages=self.messages,
            strategy=strategy,
            worlds_lost=self.worlds_lost + is_lost,
            run=self.run,
        )

    @property
    def segments(self) -> list[Segment]:
        """The segments that contain sampled tokens, in order."""
        return [segment for segment in (*self.earlier, self) if segment.turns_sampled]

    @property
    def turns_taken(self) -> int:
        """Number of turns that count against limits."""
        return len(self.turns) - self.uncounted

    @property
    def sampled_anew(self) -> int:
        """Tokens that were sampled for this trajectory. Those that a branch took over count for its parent only."""
        return sum(turn.sampled for turn in self.turns) - self.strategy.shared_tokens

    @property
    def tokens_used(self) -> int:
        """Tokens of the context after the opening prompt, which count against the response budget."""
        opening = self.earlier[0] if self.earlier else self
        return len(self.context) - len(opening.prompt_ids)

    @property
    def is_withdrawn(self) -> bool:
        """Whether the trajectory must not be trained on: it failed, was aborted, or has no turn."""
        return self.stop_reason is None or self.stop_reason.is_withdrawn or not (self.turns or self.response_ids)

    @property
    def ends_undelivered(self) -> bool:
        """Whether the last message reached no tool and no user: a limit cut it, or a filter ended the trajectory."""
        last = self.turns[-1] if self.turns else None
        if last is None or last.tools or last.unreadable or last.user is not None:
            return False
        return self.stop_reason is not StopReason.ANSWERED

    @property
    def opening(self) -> int:
        """Number of messages before the first turn; a prompt may contain assistant messages, too."""
        return self.turns[0].begins_at if self.turns else len(self.messages)

    def messages_of(self, turn: int) -> list[Message]:
        """The messages of a turn, see `Turn.begins_at`."""
        after = self.turns[turn + 1].begins_at if turn + 1 < len(self.turns) else None
        return self.messages[self.turns[turn].begins_at : after]

    @property
    def tool_errors(self) -> int:
        return sum(event.is_error for turn in self.turns for event in turn.tools)

    def open(self, prompt_ids: list[int], rendered: list[Message] | None = None, *, images: int | None = None) -> None:
        """Begin a segment with this prompt. A segment with a response is complete and moves to `earlier`.

        Args:
            rendered: the messages that the prompt is; None for those of the context before.
            images: how many of the messages' images are in it; None likewise.
        """
        if self.response_ids:
            self.earlier.append(Segment(**{each.name: getattr(self, each.name) for each in fields(Segment)}))
        # New lists, not cleared ones: those of the segment before are in `earlier` now.
        self.prompt_ids, self.response_ids, self.loss_mask, self.logprobs, self.spans = prompt_ids, [], [], [], []
        self.images = self.images if images is None else images
        self.context, self.begins = list(prompt_ids), {}
        self.rendered = self.rendered if rendered is None else rendered
        self._exempt_numbers()

    def ids_after(self, turn: int) -> list[int]:
        """The context as it was at the end of a turn's completion, a new list."""
        for segment in (self, *reversed(self.earlier)):
            ends = [span.end for span in segment.spans if span.turn == turn and span.kind.is_sampled]
            if ends:
                return segment.prompt_ids + segment.response_ids[: ends[-1]]
        raise KeyError(turn)

    def versions(self, segment: Segment) -> list[int | None]:
        """The version of the weights by id of a segment's response; None if it was not sampled, or is not known."""
        found: list[int | None] = [None] * len(segment.response_ids)
        known = {turn: iter(self.turns[turn].versions) for turn in segment.turns_sampled}
        for span in segment.spans:
            if span.kind.is_sampled:  # a template removes sampled ids from a turn's end only
                found[span.start : span.end] = islice(known[span.turn], span.end - span.start)
        return found

    def add_completion(self, completion: Completion, parsed: Parsed, edit: Edit, *, mask_thinking: bool) -> Turn:
        """Append a completion, its ids exactly as sampled. Masked thinking stays in the context and out of the loss."""
        self._apply(edit)
        turn, ids = len(self.turns), edit.appended
        self.begins[turn] = len(self.context), len(self.rendered)
        if completion.logprobs is None:
            self.has_logprobs = False
        # Zeros keep the columns aligned; `has_logprobs` says that they mean nothing.
        logprobs = completion.logprobs or [0.0] * len(ids)
        in_loss = {SpanKind.COMPLETION: True, SpanKind.THINKING: not mask_thinking, SpanKind.FORCED: False}
        for kind, begin, end in runs(len(ids), parsed.thoughts, completion.forced):
            own = logprobs[begin:end] if kind.is_sampled else None
            self.add_span(kind, turn, ids[begin:end], own, in_loss=in_loss[kind])
        self.context += ids
        # The forced marker is among the completion's ids, and was not sampled.
        begin, end = completion.forced or (0, 0)
        self.turns.append(
            Turn(
                content=parsed.content,
                thinking=parsed.thinking,
                finish_reason=completion.finish_reason,
                sampled=len(completion.ids) - (end - begin),
                begins_at=len(self.messages),
                generations=completion.generations,
                weights_version=completion.weights_version,
                request_ids=list(completion.request_ids),
                seeds=list(completion.seeds),
                attempts=list(completion.attempts),
            )
        )
        message = assistant_message(parsed)
        self.messages.append(message)
        self.rendered.append(message)
        return self.turns[-1]

    def add_context(self, edit: Edit) -> None:
        """Append rendered messages, with mask and logprob 0 since they are not sampled."""
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
        """Record the calls of the last turn and return their tool messages.

        Args:
            calls: all calls of the turn.
            results: their results.
            shown: the content of each tool message; None shows the whole text of the result.
            servers: the server of each call, None for a call that was not sent.
        """
        seen = shown or [Shown(text=result.text) for result in results]
        called = servers or [None] * len(calls)
        self.turns[-1].tools += [ToolEvent.of(*each) for each in zip(calls, results, seen, called, strict=True)]
        self.tool_calls += len(calls)
        return [tool_message(call, part.content) for call, part in zip(calls, seen, strict=True)]

    def add_user(self, event: UserEvent) -> None:
        """Record the user's reply to the last turn."""
        self.turns[-1].user = event
        self.user_turns += 1

    def fail(self, kind: str, message: str) -> None:
        """Record why the trajectory is withdrawn."""
        self.stop_reason = StopReason.FAILED
        self.failure = Failure(kind=kind, message=message)

    def take_back(self, count: int) -> None:
        """Remove the last ids of the context. If any of them were sampled, the turn keeps them as `trimmed`."""
        if count:
            trimmed = self.trim(count)
            if self.turns:
                self.turns[-1].trimmed += trimmed
            del self.context[len(self.context) - count :]

    def _exempt_numbers(self) -> None:
        for numbers in (self.prompt_ids, self.response_ids, self.loss_mask, self.logprobs, self.context):
            exempt(numbers)

    def _apply(self, edit: Edit) -> None:
        self.take_back(edit.removed)
        self.add_span(SpanKind.CONTEXT, len(self.turns) - 1, edit.inserted)
        self.context += edit.inserted


def assistant_message(parsed: Parsed) -> Message:
    """The completion as a chat message, without thinking."""
    return {"role": "assistant", "content": parsed.content} | call_message(parsed.calls)


def worlds_lost(trace: Trace) -> int:
    """Attempts at a trajectory that ended because their world was lost, the last one included."""
    return trace.worlds_lost + (trace.failure is not None and trace.failure.kind == WorldLost.code)
