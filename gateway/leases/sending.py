"""Send the calls of one trajectory: at most once, or once more where `gateway.transport.delivery.verdict` allows it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import anyio
import structlog

from mcp_rollout.gateway.connection.connection import AnyConnection, Connection
from mcp_rollout.gateway.connection.in_flight import OutgoingCall
from mcp_rollout.gateway.connection.relay import ErrorAnswer, ForwardedRequest
from mcp_rollout.gateway.errors import (
    CallTimeout,
    DeliveryUnknown,
    GatewayError,
    ServerUnavailable,
    ServesWorlds,
    ToolsChanged,
    WorldLost,
)
from mcp_rollout.gateway.types import CallFault, Role, ToolDefinition, ToolResult

log = structlog.get_logger(__name__)

_RESEND_PAUSE_S = 0.2


class Sending:
    """The connections of one session, and what is known about each from the calls that were sent over it.

    Args:
        connections: By server; a connection that is opened again replaces the old one.
        reopen: By server, where a dead connection can be replaced without losing the trajectory's state.
        changed: Servers of the gateway whose tools have changed since its start; it grows.
        meta: Added to each request.
        exclusive: Servers whose processes served no other trajectory.
    """

    def __init__(
        self,
        *,
        trajectory: str,
        connections: dict[str, AnyConnection],
        reopen: Mapping[str, Callable[[], Awaitable[AnyConnection]]],
        changed: Mapping[str, ToolsChanged],
        meta: Mapping[str, Any],
        exclusive: frozenset[str] = frozenset(),
    ) -> None:
        self.connections = connections
        self.ended = False
        """Set when the lease ends: the world is released and may belong to another trajectory."""
        self._trajectory, self._reopen, self._changed, self._meta = trajectory, reopen, changed, meta
        self._exclusive = exclusive
        self._failed: set[str] = set()
        self._timed_out: set[str] = set()
        self._running: Counter[str] = Counter()

    def healthy(self, servers: Iterable[str]) -> bool:
        """Whether no call to these servers failed or is still running, so that a reset makes them fit for reuse."""
        return not any(server in self._failed or self._running[server] for server in servers)

    @property
    def broken(self) -> bool:
        """Whether a connection is gone that cannot be opened again: the trajectory's state there is lost."""
        return any(not each.alive and server not in self._reopen for server, each in self.connections.items())

    def mark_failed(self, server: str) -> None:
        """Note that a server broke its contract: it is not used again after this session."""
        self._failed.add(server)

    def check_tools(self) -> None:
        """Raise `ToolsChanged` where a server of this session has other tools than at the start of the run."""
        for server, connection in self.connections.items():
            if (changed := self._changed.get(server) or connection.changed) is not None:
                raise changed.again()

    async def send(self, call: OutgoingCall) -> ToolResult:
        """One request, and at most one more.

        Raises:
            GatewayError: as `Connection.call`; `ServerUnavailable` when the lease has ended. Its `fault` is set where
                the trajectory caused it, in its own process.
            WorldLost: the server's process was killed, and the trajectory's state was in it.
        """
        tool, server = call.tool, call.tool.server
        self._running[server] += 1
        try:
            self._check(tool)
            connection = self.connections[server]
            try:
                return await connection.call(call, self._meta)
            except GatewayError as error:
                if not error.may_resend:
                    raise
                broken = error
            return await self._resend(call, connection, broken)
        except BaseException as error:  # cleanup, also when cancelled: the server may still be running the call
            self._failed.add(server)
            if isinstance(error, GatewayError) and server in self._exclusive and not self.ended:
                self._note_fault(server, error)
            caused = isinstance(error, GatewayError) and error.fault is not None
            if not caused and isinstance(error, DeliveryUnknown | ServerUnavailable) and self._is_lost(server):
                raise WorldLost(error.problem, server=server, tool=tool.name) from error
            raise
        finally:
            self._running[server] -= 1

    def local(self, server: str) -> Connection:
        """The connection to a server of this gateway's own. Raises `ServesWorlds` where it is on another host."""
        connection = self.connections[server].local
        if connection is None:
            raise ServesWorlds("its worlds are leases of another host, which runs its servers", server=server)
        return connection

    async def forward(self, server: str, request: ForwardedRequest) -> dict[str, Any]:
        """Send an MCP client's request, once: its client knows whether to repeat it. For gateways that relay.

        Raises:
            ErrorAnswer: the server's answer is an error.
            GatewayError: as `Forwarding.send`.
        """
        connection = self.local(server)
        if self.ended:
            raise ServerUnavailable("the lease has ended", server=server, tool=request.method)
        if not connection.alive and (reopen := self._reopen.get(server)) is not None:
            self.connections[server] = await reopen()
            connection = self.local(server)
            if self.ended:  # while this waited
                raise ServerUnavailable("the lease has ended", server=server, tool=request.method)
        self._running[server] += 1
        try:
            return await connection.forwarding.send(request, meta=self._meta, trajectory=self._trajectory)
        except ErrorAnswer:
            raise
        except BaseException:  # also when cancelled: the server may still be at it
            self._failed.add(server)
            raise
        finally:
            self._running[server] -= 1

    def _is_lost(self, server: str) -> bool:
        return not self.ended and server not in self._reopen and bool(self.connections[server].killed)

    async def _resend(self, call: OutgoingCall, connection: AnyConnection, broken: GatewayError) -> ToolResult:
        tool = call.tool
        try:
            again = await self._usable(connection, broken)
            self._check(tool)  # while this waited, the lease may have ended
            log.info(
                "session.resent", trajectory=self._trajectory, server=tool.server, tool=tool.name, after=broken.code
            )
            return replace(await again.call(call, self._meta), resends=1)
        except ServerUnavailable as error:
            if isinstance(broken, DeliveryUnknown):
                raise broken from error  # the second attempt did not run, but the first one may have
            raise

    def _note_fault(self, server: str, error: GatewayError) -> None:
        """Set the error's `fault`: what this trajectory's calls did to a process that served no other trajectory."""
        exhausted = self.connections[server].exhausted
        if isinstance(error, CallTimeout):
            self._timed_out.add(server)
            error.fault = CallFault.TIMED_OUT
        elif isinstance(error, DeliveryUnknown | ServerUnavailable) and (exhausted or server in self._timed_out):
            error.fault = CallFault.SERVER_GONE
            ended = f"was ended because {exhausted}" if exhausted else "ended after a call that timed out"
            error.problem = f"its server {ended}"

    def _check(self, tool: ToolDefinition) -> None:
        if self.ended:
            raise ServerUnavailable("the lease has ended", server=tool.server, tool=tool.name)
        if tool.role is not Role.RELEASE:  # changed tools do not matter to a release
            self.check_tools()

    async def _usable(self, connection: AnyConnection, broken: GatewayError) -> AnyConnection:
        """The connection for a second attempt; raises where the trajectory's state ended with the first."""
        server = connection.server
        # One request can break on a connection that stays up (HTTP). It may also go down a moment later: so pause, and
        # look again.
        if connection.alive:
            await anyio.sleep(_RESEND_PAUSE_S)
        if connection.alive:
            return connection
        reopen = self._reopen.get(server)
        if reopen is None:
            lost = f"its process has ended and this trajectory's state with it: {broken}"
            raise ServerUnavailable(lost, server=server, tool=broken.tool) from broken
        # Calls that broke together meet in `SharedConnection.take`, which reconnects once for all of them.
        self.connections[server] = again = await reopen()
        return again


def caused_by_policy(name: str, error: GatewayError, *, timeout_s: float) -> ToolResult:
    """What the policy reads of an error with a `fault`, which it caused in its own process; then it goes on."""
    if error.fault == CallFault.TIMED_OUT:
        message = f"{name} timed out: {error.problem}. It may have taken effect, and may still be running."
        return replace(ToolResult.error(message, fault=CallFault.TIMED_OUT), elapsed_s=timeout_s)
    return ToolResult.error(f"{name} is gone: {error.problem}. Its state is lost.", fault=CallFault.SERVER_GONE)
