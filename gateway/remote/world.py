"""A world that a host holds for one trajectory, and its servers as connections."""

from __future__ import annotations

import time
from collections.abc import Mapping
from itertools import count
from typing import Any

import anyio
import structlog

from mcp_rollout.gateway.config.models import GatewayConfig
from mcp_rollout.gateway.connection.connection import AnyConnection
from mcp_rollout.gateway.connection.in_flight import OutgoingCall
from mcp_rollout.gateway.errors import GatewayError, ProtocolError, WorldLost
from mcp_rollout.gateway.remote.host import RemoteHost
from mcp_rollout.gateway.remote.names import CALL_META, CANCEL, CHECK, CLOSE, LEASE_META, SERVER_META
from mcp_rollout.gateway.remote.outcome import HostError, decoded_failure, decoded_result
from mcp_rollout.gateway.server_events import ServerEvents
from mcp_rollout.gateway.types import Role, ToolResult

log = structlog.get_logger(__name__)

_SPARE_S = 10.0
_CLOSE_S = 5.0
"""For telling the host that a call is cancelled."""


class RemoteWorld:
    """One lease of a host. Calls may run in parallel."""

    def __init__(self, host: RemoteHost, handle: str, config: GatewayConfig) -> None:
        self.host, self.handle, self.config = host, handle, config
        self.asked_at = anyio.current_time()
        """When the last request for it began."""
        self.lost = ""
        """Why its state is gone; empty while it is not."""
        self.over, self.done = anyio.Event(), anyio.Event()
        self.connections: dict[str, AnyConnection] = {name: RemoteConnection(self, name) for name in config.servers}
        """By server."""
        self._keys = count(1)

    def lose(self, problem: str) -> None:
        """Note that the world is gone; the first reason is kept."""
        self.lost = self.lost or problem

    async def call(
        self,
        server: str,
        tool: str,
        arguments: Mapping[str, Any],
        events: ServerEvents,
        *,
        trusted: bool,
        wait_s: float,
    ) -> ToolResult:
        """One call, executed at most once. Raises as `RemoteHost.request`."""
        began = time.perf_counter()
        meta = {CALL_META: str(next(self._keys)), SERVER_META: server, LEASE_META: self.handle}
        try:
            raw = await self.request("tools/call", {"name": tool, "arguments": arguments}, meta, wait_s=wait_s)
        except anyio.get_cancelled_exc_class():
            with anyio.move_on_after(_CLOSE_S, shield=True):  # this task is being cancelled, and the host has to know
                await self._quietly(CANCEL, meta)
            raise
        elapsed_s, redactor = time.perf_counter() - began, self.host.redactor
        try:
            result = decoded_result(raw, trusted=trusted, elapsed_s=elapsed_s, events=events, redact=redactor.json)
        except ValueError as error:
            raise ProtocolError(redactor.text(str(error))) from None
        return await redactor.result(result) if redactor.needed else result

    async def request(self, method: str, params: Mapping[str, Any], meta: Mapping[str, Any], *, wait_s: float) -> Any:
        """As `RemoteHost.request`, for this lease."""
        if self.lost:
            raise WorldLost(self.lost)
        self.asked_at = anyio.current_time()
        try:
            return await self.host.request(method, params, meta, wait_s=wait_s)
        except WorldLost as error:
            # Noted for the other calls of the trajectory: each would wait for `lost_after_s` again.
            self.lose(str(error))
            raise

    async def check(self) -> None:
        """Raise `ToolsChanged` where a server of the world has announced that its tools have changed."""
        bound_s = self.host.offer.patience_s + _SPARE_S
        try:
            await self.request(CHECK, {}, {LEASE_META: self.handle}, wait_s=bound_s + self.config.reset_timeout_s)
        except HostError as error:
            raise self.broken(error) from error

    def broken(self, error: HostError, events: ServerEvents | None = None) -> GatewayError:
        """What the host's gateway raised; see `decoded_failure`."""
        found = decoded_failure(error.error, events)
        if isinstance(found, WorldLost):
            self.lose(str(found))
        return found

    async def close(self) -> None:
        """Give the lease back; the host releases its servers. Bounded, and it raises only cancellation.

        A host that was not told frees it after its idle time, once this gateway renews it no more.
        """
        if not self.lost:
            # Longer than the host's own bound on the release, which is what should end it.
            with anyio.move_on_after(self.config.release_timeout_s + _CLOSE_S):
                await self._quietly(CLOSE, {LEASE_META: self.handle})
        self.done.set()

    async def _quietly(self, method: str, meta: Mapping[str, Any]) -> None:
        try:
            await self.host.request(method, {}, meta, wait_s=self.config.release_timeout_s + _CLOSE_S)
        except (HostError, GatewayError) as error:
            log.info("world.not_told", host=self.host.url, method=method, problem=str(error))


class RemoteConnection:
    """One server of a world, as `AnyConnection`."""

    def __init__(self, world: RemoteWorld, server: str) -> None:
        self.server = server
        self.exhausted = self.killed = ""  # the host says so in its errors
        self.changed = None  # likewise
        self.world = world
        self._trusted = world.config.servers[server].trusted

    @property
    def local(self) -> None:
        return None

    @property
    def alive(self) -> bool:
        return not self.world.lost and not self.world.over.is_set()

    @property
    def done(self) -> anyio.Event:
        return self.world.done

    def end(self, reason: str = "") -> None:
        # Ends the world: its servers were leased together, and are given back together.
        self.world.over.set()

    async def call(self, call: OutgoingCall, meta: Mapping[str, Any]) -> ToolResult:
        """As `Connection.call`. `meta` is the host's to send: it has the trajectory and the seed from the lease.

        Raises:
            WorldLost: the world's state is gone, and whether this call was executed is unknown.
        """
        tool = call.tool
        if tool.role is Role.RELEASE:
            return ToolResult()  # the host releases what it leases, also where its client has vanished
        events = call.in_flight().events
        where = {"server": self.server, "tool": tool.name}
        offer = self.world.host.offer
        attempt_s = max(call.timeout_s, offer.servers[self.server].call_timeout_s) + offer.patience_s
        wait_s = (2 if tool.safe_to_resend else 1) * attempt_s + _SPARE_S  # the host sends once more what it may
        try:
            return await self.world.call(
                self.server, tool.name, call.arguments, events, trusted=self._trusted, wait_s=wait_s
            )
        except HostError as error:
            raise self.world.broken(error, events) from error
        except WorldLost as error:
            raise WorldLost(error.problem, **where) from error
