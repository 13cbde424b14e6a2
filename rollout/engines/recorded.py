"""The engine that plays stored traces again: their ids and log-probabilities, turn by turn, without a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mcp_rollout.gateway.differences import shared_beginning
from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.gateway.leases.session import Session
from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.environment.task import Origin, Task
from mcp_rollout.rollout.errors import EngineError
from mcp_rollout.rollout.trace.entries import Entry
from mcp_rollout.rollout.trace.reader import Traces
from mcp_rollout.rollout.trace.record import Trace, Turn
from mcp_rollout.rollout.trace.run_record import TokenIds
from mcp_rollout.rollout.trace.segment import Segment, Span, SpanKind
from mcp_rollout.rollout.types import Completion, FinishReason, Policy, TokenBuilder

PREFIX = "recorded:"
_IDENTITY = ("environment", "task", "seed", "sample")
_FURTHER = ("step", "row", "attempt")
"""What chooses among several stored trajectories of one identity, where it is equal."""


class RecordedTraces:
    """Stored trajectories as policies, found by environment, task, seed and sample.

    Works for any adapter that plays trajectories: `policy(task, origin)` needs no session.

    Args:
        traces: an open directory of traces.

    Raises:
        ConfigError: the directory has no trajectories.
    """

    def __init__(self, traces: Traces) -> None:
        self._traces = traces
        self._entries: dict[tuple[str, ...], list[Entry]] = {}
        columns = [*_IDENTITY, *_FURTHER, "id", "run", "began_at", "engine"]
        for entry in traces.entries(columns=columns):
            self._entries.setdefault(tuple(str(entry[name]) for name in _IDENTITY), []).append(entry)
        if not self._entries:
            raise ConfigError("has no trajectories", file=traces.directory, key="--engine", remedy="name another")

    @property
    def engines(self) -> list[str]:
        """Names of the engines that sampled the trajectories."""
        names = {entry["engine"] for entries in self._entries.values() for entry in entries}
        return sorted(str(name).removeprefix(PREFIX) for name in names)

    def policy(self, task: Task, origin: Origin) -> Policy:
        """The policy that samples what the stored trajectory of this task and sample has.

        Raises:
            EngineError: there is none, or several that only differ in what this origin does not say.
        """
        return RecordedPolicy(self._traces.read(self._entry(task, origin)))

    def _entry(self, task: Task, origin: Origin) -> Entry:
        asked = {"environment": task.environment, "task": task.task, "seed": task.seed, "sample": origin.sample}
        found = self._entries.get(tuple(str(asked[name]) for name in _IDENTITY))
        where = f"{self._traces.directory} has"
        named = ", ".join(f"{name} {value}" for name, value in asked.items())
        if found is None:
            raise EngineError(f"{where} no trajectory of {named}{self._others(task)}")
        wanted = {"step": origin.step if origin.step >= 0 else None, "row": origin.row, "attempt": origin.attempt}
        for name in _FURTHER:
            # What no entry has, or this origin does not say, decides nothing.
            found = [entry for entry in found if entry[name] == wanted[name]] or found
        if len(steps := sorted({str(entry["step"]) for entry in found})) > 1:
            raise EngineError(f"{where} {len(found)} trajectories of {named}, of the steps {', '.join(steps)}")
        # A run that is resumed plays what had failed once more, as a further attempt.
        return max(found, key=lambda entry: (entry["attempt"], entry["began_at"]))

    def _others(self, task: Task) -> str:
        """What it has of the task, for messages."""
        same = [key for key in self._entries if key[:2] == (task.environment, task.task)]
        found = [f"seed {seed}, sample {sample}" for _, _, seed, sample in sorted(same)[:5]]
        return f"; of this task it has {'; '.join(found)}" if found else "; it has nothing of this task"


class RecordedPolicy:
    """Generates what a stored trajectory has: ids, log-probabilities, finish reasons, weights versions.

    Args:
        trace: the stored trajectory, with one segment or several.
    """

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._turn, self._left = -1, list[Completion]()

    async def generate(self, ids: list[int], *, max_tokens: int, turn: int) -> Completion:
        if turn != self._turn:
            self._turn, self._left = turn, self._stored(ids, turn, max_tokens)
        if not self._left:
            problem = f"was generated in {self._trace.turns[turn].generations} requests, and one more was made"
            raise EngineError(f"{self._where(turn)} {problem}")
        completion = self._left.pop(0)
        if len(completion.ids) > max_tokens:
            problem = f"has {len(completion.ids)} tokens where {max_tokens} are allowed now"
            raise EngineError(f"{self._where(turn)} {problem}: play it with the limits it was recorded with")
        return completion

    def _where(self, turn: int) -> str:
        return f"turn {turn} of the stored trajectory {self._trace.id}"

    def _stored(self, context: Sequence[int], turn: int, max_tokens: int) -> list[Completion]:
        """The turn's completions, one for each request that it took."""
        trace = self._trace
        if turn >= len(trace.turns):
            ending = f"it ended with {trace.stop_reason}" + (f": {trace.failure.message}" if trace.failure else "")
            raise EngineError(f"{self._where(turn)} is missing: it has {len(trace.turns)} turns; {ending}")
        found = _find(trace, turn)
        if found is None:
            if trace.turns[turn].sampled > len(trace.turns[turn].trimmed):
                raise EngineError(f"{self._where(turn)} has no ids in any segment")
            return _completions(trace.turns[turn], trace.turns[turn].trimmed, None, None, max_tokens)
        segment, spans = found
        begin, end = spans[0].start, spans[-1].end
        self._compare(context, [*segment.prompt_ids, *segment.response_ids[:begin]], turn)
        trimmed = trace.turns[turn].trimmed
        # A segment has no log-probabilities of tokens that were trimmed; they are trimmed again before they reach a
        # sample.
        logprobs = [*segment.logprobs[begin:end], *[0.0] * len(trimmed)] if trace.has_logprobs else None
        forced = next(((span.start - begin, span.end - begin) for span in spans if span.kind is SpanKind.FORCED), None)
        ids = [*segment.response_ids[begin:end], *trimmed]
        return _completions(trace.turns[turn], ids, logprobs, forced, max_tokens)

    def _compare(self, context: Sequence[int], stored: Sequence[int], turn: int) -> None:
        """The stored context may go on: a template can put boundary tokens in front of a completion."""
        if list(context) == stored[: len(context)]:
            return
        at = shared_beginning(context, stored)
        remedy = "replay it over a cassette of its world, with its tokenizer, template and settings"
        raise EngineError(f"the context of {self._where(turn)} is another one from token {at} on; {remedy}")


def _find(trace: Trace, turn: int) -> tuple[Segment, list[Span]] | None:
    """The segment that a turn was sampled in, and its spans there; later segments have it in their prompts."""
    for segment in (*trace.earlier, trace):
        spans = [span for span in segment.spans if span.turn == turn and span.kind is not SpanKind.CONTEXT]
        if spans:
            return segment, spans
    return None


def _completions(
    turn: Turn, ids: list[int], logprobs: list[float] | None, forced: tuple[int, int] | None, max_tokens: int
) -> list[Completion]:
    """A turn's completions: one, or two where its thinking budget was reached. Only the first names the requests."""

    def part(begin: int, end: int, reason: FinishReason, *, first: bool) -> Completion:
        return Completion(
            ids=ids[begin:end],
            logprobs=None if logprobs is None else logprobs[begin:end],
            finish_reason=reason,
            weights_version=turn.weights_version,
            attempts=tuple(turn.attempts) if first else (),
            request_ids=tuple(turn.request_ids) if first else (),
            seeds=tuple(turn.seeds) if first else (),
        )

    if turn.generations == 1:
        return [part(0, len(ids), turn.finish_reason, first=True)]
    # Without a marker the thought ended by itself within the budget, which is what the first request asks for.
    cut, rest = forced or (min(max_tokens, len(ids)), min(max_tokens, len(ids)))
    return [part(0, cut, FinishReason.LENGTH, first=True), part(rest, len(ids), turn.finish_reason, first=False)]


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedEngine:
    """`Engine` over stored traces."""

    name: str
    context_tokens: int | None
    notes: list[str]
    recorded: RecordedTraces
    token_ids: TokenIds
    is_chat: bool
    """Whether a chat API or a function gave text: its lengths are bytes, without limits in tokens."""
    make_tokens: Callable[[], TokenBuilder]

    def tokens(self) -> TokenBuilder:
        return self.make_tokens()

    async def policy(self, session: Session, environment: Environment, task: Task, origin: Origin) -> Policy:
        return self.recorded.policy(task, origin)
