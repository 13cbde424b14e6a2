"""Replay a root's recorded beginning up to a branching point, over a world that repeats it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from mcp_rollout.gateway.differences import excerpts
from mcp_rollout.gateway.errors import HarnessError
from mcp_rollout.gateway.leases.session import Session
from mcp_rollout.gateway.types import Role, ToolResult, canonical_json
from mcp_rollout.rollout.errors import Diverged
from mcp_rollout.rollout.loop.difference import compared, described
from mcp_rollout.rollout.loop.recording import AroundSession, BranchingPoint, Recording, digest, made
from mcp_rollout.rollout.trace.record import Trace
from mcp_rollout.rollout.types import Completion, Policy

_SHOWN = 160
"""Characters of a call's arguments that a divergence quotes."""
_NOT_SENT = ToolResult.error("Not sent: the trajectory that this one replays did not make this call here.")


@dataclass(frozen=True, slots=True)
class Branch:
    """Where a leaf branches: it shares all that the recording has before this turn."""

    recording: Recording
    turn: int

    @property
    def point(self) -> BranchingPoint:
        return self.recording.points[self.turn]


class Replay(AroundSession):
    """The recorded beginning of a branch, as its policy and its world.

    Until the branching point, the policy returns the recorded completions, and the world either sends the recorded
    calls again and compares their results, or gives the recorded results and is restored from a snapshot at the end.
    Both pass requests on from there.

    Every method can raise Diverged: the branch did not do what its parent did, or the world answered differently.
    """

    def __init__(self, branch: Branch, session: Session, policy: Policy, trace: Trace) -> None:
        super().__init__(session)
        self._branch, self._policy, self._trace = branch, policy, trace
        self._calls = self._generations = self._sent = 0
        self._skipped_replies = 0
        """Replies of the user that were not asked for again; the user's numbers are so much behind."""
        self._arrived = False
        self._restores = branch.point.snapshot is not None and session.restorable

    # As a policy.

    async def generate(self, ids: list[int], *, max_tokens: int, turn: int) -> Completion:
        if self._arrived:
            return await self._policy.generate(ids, max_tokens=max_tokens, turn=turn)
        if turn == self._branch.turn:
            await self._arrive(ids)
            return await self._policy.generate(ids, max_tokens=max_tokens, turn=turn)
        recorded = self._branch.recording.generations[self._generations]
        # The ids themselves are compared: advantages treat the shared tokens of siblings as the same tokens.
        if (recorded.turn, recorded.context) != (turn, digest(ids)):
            raise Diverged(
                f"turn {turn + 1} was generated from another context than its parent's turn {recorded.turn + 1}"
            )
        self._generations += 1
        return recorded.completion

    async def _arrive(self, ids: list[int]) -> None:
        """The beginning is complete: take note of it in the trace."""
        point = self._branch.point
        # All three: equal ids alone do not prove that the world has done the same.
        if (self._generations, self._calls, digest(ids)) != (point.generations, point.calls, point.context):
            raise Diverged(f"the context of turn {self._branch.turn + 1} is not its parent's")
        if self._restores:
            assert point.snapshot is not None
            try:
                await self._session.restore(point.snapshot)
            except HarnessError as error:
                raise Diverged(f"the snapshot was refused: {error}") from error
        self._arrived = True
        trace, strategy = self._trace, self._trace.strategy
        trace.origin = trace.origin.model_copy(
            update={"parent": self._branch.recording.trajectory, "branched_at": point.tokens}
        )
        strategy.shared_turns, strategy.replayed_calls = self._branch.turn, self._sent
        strategy.shared_tokens = sum(turn.sampled for turn in trace.turns)
        strategy.restored = self._restores

    def check(self) -> None:
        """Raises Diverged where the trajectory ended before the branching point."""
        if not self._arrived:
            ended = f"{len(self._trace.turns)} of {self._branch.turn} turns: {self._trace.stop_reason}"
            raise Diverged(f"the replay ended after {ended}")

    # As a world.

    async def call(self, name: str, arguments: Any) -> ToolResult:
        if self._arrived:
            return await self._session.call(name, arguments)
        recorded = self._next(name, arguments)
        if self._restores:
            # Not sent: the snapshot that is restored at the branching point already contains this call's effect.
            return recorded
        self._sent += 1
        return self._compared(name, arguments, recorded, await self._session.call(name, arguments))

    async def invoke(self, role: Role, arguments: Mapping[str, Any], *, server: str) -> ToolResult:
        if self._arrived:
            if role is Role.REPLY:
                arguments = {**arguments, "seq": arguments["seq"] - self._skipped_replies}
            return await self._session.invoke(role, arguments, server=server)
        name = f"{server}/{role}"
        recorded = self._next(name, arguments)
        if self._restores:
            self._skipped_replies += role is Role.REPLY
            return recorded
        # Every trajectory starts its user, so this is not a call of a turn.
        self._sent += role is not Role.START
        result = await self._session.invoke(role, arguments, server=server)
        return self._compared(name, arguments, recorded, result)

    def _next(self, name: str, arguments: Any) -> ToolResult:
        """The recorded result of the call that comes next."""
        number, self._calls = self._calls, self._calls + 1
        recorded = self._branch.recording.calls[number] if number < self._branch.point.calls else None
        now = made(name, arguments)
        if recorded is None or recorded.result is None:
            raise Diverged(f"{self._place}: {_short(now)} has no recorded result", result=_NOT_SENT)
        if recorded.made != now:
            _, before, now = excerpts(recorded.made, now)
            raise Diverged(f"{self._place}: the call {before} of the parent became {now}", result=_NOT_SENT)
        return recorded.result

    def _compared(self, name: str, arguments: Any, recorded: ToolResult, result: ToolResult) -> ToolResult:
        """The recorded result, which the parent's policy has read, if the world has given the same one again."""
        if found := compared(recorded, result):
            call = f"{name} {_short(canonical_json(arguments))}"
            raise Diverged(f"{self._place}, {call}: {described(found)}", result=result)
        # The parent's result even where volatile fields differ: the ids of the branch have to be the parent's.
        return replace(recorded, elapsed_s=result.elapsed_s, resends=result.resends)

    @property
    def _place(self) -> str:
        """The current turn, counted from 1 as by `trace show`."""
        turns = len(self._trace.turns)
        return f"turn {turns}" if turns else "before the first turn"


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
