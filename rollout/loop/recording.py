"""Record a trajectory so that others can branch off its turns.

It has what came from outside: the policy's completions, the results of calls, the replies of the user. All else follows
from these and is computed again, so a branch needs no copy of the agent's, the user's or the filters' state.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from mcp_rollout.gateway.errors import HarnessError
from mcp_rollout.gateway.leases.session import Session
from mcp_rollout.gateway.server_events import ServerEvents
from mcp_rollout.gateway.types import Role, ToolDefinition, ToolResult, canonical_json
from mcp_rollout.rollout.types import Completion, Policy


@dataclass(frozen=True, kw_only=True, slots=True)
class Generation:
    """One request to the policy; a turn with a thinking budget can have two."""

    turn: int
    context: str
    """Digest of the ids that were continued."""
    completion: Completion


@dataclass(kw_only=True, slots=True)
class RecordedCall:
    """One call of a tool, or of a harness tool by its role."""

    made: str
    """Name and arguments in canonical form."""
    result: ToolResult | None = None
    """None until it returned, and where it did not."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BranchingPoint:
    """The state of a trajectory before a turn was generated."""

    generations: int
    """Number of generations before it."""
    calls: int
    """Number of calls before it."""
    tokens: int
    """Number of ids in the context."""
    context: str
    """Digest of these ids."""
    snapshot: Mapping[str, Any] | None
    """The world's state by server; None if it was not taken."""


@dataclass(kw_only=True, slots=True)
class Recording:
    """The record of one trajectory, which grows while it is played."""

    trajectory: str
    generations: list[Generation] = field(default_factory=list[Generation])
    calls: list[RecordedCall] = field(default_factory=list[RecordedCall])
    points: list[BranchingPoint] = field(default_factory=list[BranchingPoint])
    """By turn."""

    @property
    def turns(self) -> range:
        """The turns that can be branched at: all that have begun but the first."""
        return range(1, len(self.points))

    def surprisal(self, turn: int) -> float:
        """Mean surprisal in nats of the tokens sampled in a turn; 0 where their log-probabilities are unknown."""
        own = [generation.completion for generation in self.generations if generation.turn == turn]
        logprobs = [value for completion in own for value in completion.logprobs or ()]
        return -fmean(logprobs) if logprobs else 0.0


class RecordingPolicy:
    """Hands requests on to a policy, and puts branching points and completions on the recording.

    Args:
        last: The last turn that needs a snapshot; None for all.
        snapshots: Whether to take snapshots where the session can.
        changed: Called at each new branching point.
    """

    def __init__(
        self,
        policy: Policy,
        recording: Recording,
        session: Session,
        *,
        last: int | None,
        snapshots: bool,
        changed: Callable[[], None],
    ) -> None:
        self._policy, self._recording, self._session = policy, recording, session
        self._last, self._changed = last, changed
        self._snapshots = snapshots and session.restorable

    async def generate(self, ids: list[int], *, max_tokens: int, turn: int) -> Completion:
        context = digest(ids)
        if turn == len(self._recording.points):
            # Before the generation: branches may leave from here while the root still samples this turn.
            await self._mark(turn, len(ids), context)
        completion = await self._policy.generate(ids, max_tokens=max_tokens, turn=turn)
        self._recording.generations.append(Generation(turn=turn, context=context, completion=completion))
        return completion

    async def _mark(self, turn: int, tokens: int, context: str) -> None:
        generations, calls = len(self._recording.generations), len(self._recording.calls)
        # No branch leaves from turn 0: it would share the prompt alone, as every sibling does.
        wanted = self._snapshots and turn >= 1 and (self._last is None or turn <= self._last)
        point = BranchingPoint(
            generations=generations,
            calls=calls,
            tokens=tokens,
            context=context,
            snapshot=await self._snapshot() if wanted else None,
        )
        self._recording.points.append(point)
        self._changed()

    async def _snapshot(self) -> Mapping[str, Any] | None:
        try:
            return await self._session.snapshot()
        except HarnessError:  # the server refuses: branches replay the calls, and no further snapshot is asked for
            self._snapshots = False
            return None


class AroundSession:
    """Of a `TurnSession` around a session: what it hands on as it is."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def tools(self) -> Mapping[str, ToolDefinition]:
        return self._session.tools

    def reveal(self, names: Iterable[str]) -> None:
        self._session.reveal(names)

    def drain_server_events(self) -> ServerEvents:
        return self._session.drain_server_events()


class RecordingSession(AroundSession):
    """Hands calls on to a session, and puts them on the recording in the order in which they begin."""

    def __init__(self, session: Session, recording: Recording) -> None:
        super().__init__(session)
        self._recording = recording

    async def call(self, name: str, arguments: Any) -> ToolResult:
        # Entered before it is sent: the order of beginning is the order in which a branch repeats the calls.
        recorded = self._begin(name, arguments)
        recorded.result = await self._session.call(name, arguments)
        return recorded.result

    async def invoke(self, role: Role, arguments: Mapping[str, Any], *, server: str) -> ToolResult:
        recorded = self._begin(f"{server}/{role}", arguments)
        recorded.result = await self._session.invoke(role, arguments, server=server)
        return recorded.result

    def _begin(self, name: str, arguments: Any) -> RecordedCall:
        recorded = RecordedCall(made=made(name, arguments))
        self._recording.calls.append(recorded)
        return recorded


def made(name: str, arguments: Any) -> str:
    """A call in canonical form."""
    return canonical_json([name, arguments])


def digest(ids: Sequence[int]) -> str:
    """A digest of token ids; equal for equal ids."""
    return hashlib.sha256(array("q", ids).tobytes()).hexdigest()
