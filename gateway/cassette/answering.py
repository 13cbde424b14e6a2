"""Answer the calls of one replayed trajectory from its recorded lease."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import structlog

from mcp_rollout.gateway.cassette.lines import is_query
from mcp_rollout.gateway.cassette.reading import CassetteCall, CassetteLease, call_key
from mcp_rollout.gateway.connection.in_flight import InFlightCall, OutgoingCall
from mcp_rollout.gateway.connection.redaction import CassetteSecrets
from mcp_rollout.gateway.differences import differences
from mcp_rollout.gateway.errors import GatewayError, ReplayMismatch, ServerUnavailable
from mcp_rollout.gateway.leases.sending import Sending
from mcp_rollout.gateway.leases.session import Session
from mcp_rollout.gateway.server_events import ServerEvents, cut_text
from mcp_rollout.gateway.types import Role, ToolDefinition, ToolResult, canonical_json

log = structlog.get_logger(__name__)

_SHOWN = 300
"""Characters of a call's arguments in a message."""


class ReplayedSending(Sending):
    """Answers calls from a recorded lease: for each server in the recorded order, with the recorded outcomes.

    Args:
        query: finds a recorded call that only reads.
        go_live: leases the live servers, whose state is then brought to that of the trajectory; None fails instead.
    """

    def __init__(
        self,
        recorded: CassetteLease,
        trajectory: str,
        *,
        query: Callable[[bytes], CassetteCall | None],
        secrets: CassetteSecrets,
        go_live: Callable[[], Any] | None,
    ) -> None:
        super().__init__(trajectory=trajectory, connections={}, reopen={}, changed={}, meta={})
        self._lease, self._id, self._query, self._secrets = recorded, trajectory, query, secrets
        self._go_live, self._going_live = go_live, anyio.Lock()
        self._live: Sending | None = None
        """Set once the live servers have the trajectory's state."""
        self._catching_up: Sending | None = None
        self._left: dict[str, deque[CassetteCall]] = {}
        for each in recorded.calls:
            # The answer to a server's question is part of the call in which it asked.
            if not each.is_query and each.role is not Role.ELICIT:
                self._left.setdefault(each.server, deque()).append(each)
        self._answered: list[OutgoingCall] = []
        """Calls that the cassette has answered so far."""

    def check_tools(self) -> None:
        changed = self._lease.lease.tools_changed
        if self._live is not None:
            self._live.check_tools()
        elif changed is not None and not any(self._left.values()):
            raise changed.error()

    def check_finished(self) -> None:
        """Raises ReplayMismatch where the recorded trajectory made further calls."""
        further = [each for left in self._left.values() for each in left]
        # A lease without a task only lists tasks: it need not ask for all that was recorded.
        if further and self._live is None and self._lease.lease.task is not None:
            first = min(further, key=lambda each: each.number)
            call = first.filled()
            problem = f"the recording goes on with {_shown(call.tool, call.arguments)}, and the trajectory ended"
            raise ReplayMismatch(f"{first.where}: {problem}", server=first.server)

    async def send(self, call: OutgoingCall) -> ToolResult:
        tool = call.tool
        if self.ended:
            raise ServerUnavailable("the lease has ended", server=tool.server, tool=tool.name)
        if tool.role is Role.RELEASE and self._live is None:
            return ToolResult()
        if tool.role is Role.ELICIT and self._catching_up is not None:  # asked within one of the calls sent again
            return await self._catching_up.send(call)
        found = self._find(tool, call.arguments) if self._live is None else None
        # Nothing waits from `_find` to `_answered`: concurrent calls are taken in the order in which they began.
        if isinstance(found, ReplayMismatch):
            if self._go_live is None:
                raise found
            await self._continue_live(found)
        if self._live is not None:
            return await self._live.send(call)
        assert isinstance(found, CassetteCall)
        # Before the `await` below: if a concurrent call goes live meanwhile, this one is sent to the live servers, too.
        if not is_query(tool.role):
            self._answered.append(call)
        # Other trajectories run too; shielded, since the failure of a concurrent call must not undo this outcome.
        await anyio.lowlevel.cancel_shielded_checkpoint()
        return await self._outcome(found, call)

    def _find(self, tool: ToolDefinition, arguments: Mapping[str, Any]) -> CassetteCall | ReplayMismatch:
        asked = self._secrets.redact(dict(arguments))
        key = call_key(tool.server, tool.name, asked, self._id)
        left = self._left.get(tool.server)
        if left and left[0].key == key:
            return left.popleft()
        if is_query(tool.role) or self._lease.lease.task is None:
            problem = f"{self._lease.where} has no call {_shown(tool.name, asked)}"
            return self._query(key) or ReplayMismatch(problem, server=tool.server, tool=tool.name)
        if not left:
            problem = f"{self._lease.where}: no further call was recorded, asked was {_shown(tool.name, asked)}"
        else:
            call = left[0].filled()
            recorded = _shown(call.tool, call.arguments)
            problem = f"{left[0].where}: recorded was {recorded}, asked was {_shown(tool.name, asked)}"
            if call.tool == tool.name and (first := next(differences(call.arguments, asked), None)):
                problem += f", which differs in {first.path}"
        return ReplayMismatch(problem, server=tool.server)

    async def _outcome(self, found: CassetteCall, call: OutgoingCall) -> ToolResult:
        recorded = found.filled(self._id)
        if recorded.events is not None:
            call.in_flight().events.add(recorded.events)
        if recorded.failure is not None:
            raise recorded.failure.error()
        if recorded.result is None:
            # What cut the recorded call short does so again: a concurrent call's failure, or the trajectory's time.
            await anyio.sleep(call.timeout_s)
            problem = f"{found.where} has no outcome, and nothing ended the call within {call.timeout_s:g} s"
            raise ReplayMismatch(problem, server=recorded.server, tool=recorded.tool)
        return recorded.result.result(recorded.elapsed_s)

    async def _continue_live(self, mismatch: ReplayMismatch) -> None:
        """Lease the servers and send them what the cassette has answered so far."""
        assert self._go_live is not None
        # Several calls may miss at once: one leases the servers, and the others then go on with them.
        async with self._going_live:
            if self._live is not None:
                return
            log.info("replay.live", trajectory=self._id, reason=str(mismatch), calls=len(self._answered))
            session: Session = await self._go_live()
            # Not `_live` yet: a call that came now would reach servers that lack the trajectory's state.
            self._catching_up = live = session.sending
            for call in self._answered:
                # The new lease has reset the servers itself.
                if call.tool.role is Role.RESET:
                    continue
                try:
                    # One after the other, in the order of the cassette, whatever was concurrent then.
                    await live.send(replace(call, in_flight=partial(_unrecorded, call)))
                except GatewayError as error:
                    # It may have failed when it was recorded, too; the trajectory has its outcome from the cassette.
                    log.info("replay.live_call_failed", trajectory=self._id, tool=call.tool.name, problem=str(error))
            self._live = live


def _unrecorded(call: OutgoingCall) -> InFlightCall:
    made = call.in_flight()
    made.events = ServerEvents()  # the trace has the recorded ones
    return made


def _shown(tool: str, arguments: Mapping[str, Any]) -> str:
    return f"{tool} {cut_text(canonical_json(dict(arguments)), _SHOWN)}"
