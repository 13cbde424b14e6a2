"""One lease of a served gateway, as its handle or its address names it, and its calls.

Each key of a call is executed at most once, and its outcome is kept for repeated requests.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import anyio

from mcp_rollout.gateway.errors import DeliveryUnknown, GatewayError, ServerUnavailable
from mcp_rollout.gateway.leases.session import Session
from mcp_rollout.gateway.serve.bearers import Bearer, Refused
from mcp_rollout.gateway.serve.client_gateways import ClientGateway
from mcp_rollout.gateway.types import ToolDefinition

_MOST_CANCELLED = 1000
"""Keys that are kept of calls which were cancelled before they arrived: the two requests cross on the way at most."""


@dataclass(eq=False, slots=True)
class _Call:
    tool: tuple[str, str]
    done: anyio.Event = field(default_factory=anyio.Event)
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    outcome: bytes | None = None
    """The members `"result": …` or `"error": …` of the answer; None while it runs, and when it was dropped."""


class LeasedCalls:
    """Outcomes by idempotency key. Keys are kept for as long as the lease, outcomes up to a number of bytes."""

    def __init__(self, bearer: Bearer) -> None:
        self._bearer = bearer
        self._calls: dict[str, _Call] = {}
        self._cancelled: deque[str] = deque()
        self._kept: deque[_Call] = deque()
        """Calls whose outcome is kept, in the order in which they ended."""
        self._bytes = self._running = 0
        self._closed = False
        self._idle = anyio.Event()

    async def once(self, key: str, tool: tuple[str, str], execute: Callable[[], Awaitable[bytes]]) -> bytes:
        """The outcome of the call with this key, which is executed if the key is new.

        Raises:
            Refused: the bearer has too many calls under way; this one is not executed.
            DeliveryUnknown: it was executed, and its outcome is not kept any more.
            ServerUnavailable: the call was cancelled, or the lease has ended.
        """
        # No `await` from here until `_execute` has noted the key: of two requests with one key, one executes the call.
        call = self._calls.get(key)
        if call is None:
            return await self._execute(key, tool, execute)
        # The cancellation has overtaken the call's own request, which travels on another connection.
        if call.tool == ("", ""):
            raise ServerUnavailable("the call was cancelled before it arrived", server=tool[0], tool=tool[1])
        if call.tool != tool:
            raise Refused(400, f"the key {key!r} was used for another tool")
        # Bounded as the call is: the request that executes it goes on when its client disconnects.
        await call.done.wait()
        if call.outcome is None:
            raise DeliveryUnknown("was executed, and its outcome is not kept any more", server=tool[0], tool=tool[1])
        return call.outcome

    async def _execute(self, key: str, tool: tuple[str, str], execute: Callable[[], Awaitable[bytes]]) -> bytes:
        server, name = tool
        if self._closed:
            raise ServerUnavailable("the lease has ended", server=server, tool=name)
        bearer = self._bearer
        # Before the key is noted: this call was not executed, and its client sends it again with the same key.
        bearer.check_calls()
        call = self._calls[key] = _Call(tool)
        bearer.calls += 1
        self._running += 1
        try:
            # Not the request's own scope: a cancelled call still has an answer, which its request gives.
            with call.scope:
                call.outcome = await execute()
                self._keep(call, len(call.outcome))
        finally:
            # Also after a failure: requests that repeat the call and `closed` would wait for ever otherwise.
            bearer.calls -= 1
            self._running -= 1
            call.done.set()
            if not self._running:
                self._idle.set()
        if call.outcome is None:
            raise ServerUnavailable("the call was cancelled", server=server, tool=name)
        return call.outcome

    def _keep(self, call: _Call, size: int) -> None:
        self._kept.append(call)
        self._bytes += size
        self._bearer.kept_bytes += size
        # The newest one stays: its client may be asking for it again at this moment.
        while self._bearer.kept_bytes > self._bearer.limits.kept_bytes and len(self._kept) > 1:
            oldest = self._kept.popleft()
            freed = len(oldest.outcome or b"")
            oldest.outcome = None
            self._bytes -= freed
            self._bearer.kept_bytes -= freed

    def cancel(self, key: str) -> None:
        """Cancel a call that is under way. One whose request has not arrived yet is not executed when it does."""
        call = self._calls.get(key)
        if call is not None:
            call.scope.cancel()
            return
        self._calls[key] = call = _Call(("", ""))
        call.done.set()
        self._cancelled.append(key)
        if len(self._cancelled) > _MOST_CANCELLED:
            del self._calls[self._cancelled.popleft()]

    def close(self) -> None:
        """Begin no more calls, and cancel those under way."""
        self._closed = True
        for call in self._calls.values():
            if not call.done.is_set():
                call.scope.cancel()

    async def closed(self) -> None:
        """Wait until no call is under way."""
        while self._running:
            # Another one for each round: whenever the last call ended, also before `close`, the old one was set.
            self._idle = anyio.Event()
            await self._idle.wait()

    def forget(self) -> None:
        """Drop everything that is kept."""
        self._bearer.kept_bytes -= self._bytes
        self._bytes = 0
        self._calls.clear()
        self._cancelled.clear()
        self._kept.clear()


class ServedLease:
    """One lease: a task of its own holds the gateway's session until it is over.

    Args:
        key: Of the request that opened it; empty for an MCP client's, which has none to repeat.
        calls: Those of its trainer.
        client: What it is to MCP clients, and leased from.
        address: Where MCP clients find its world; None for a world without an address.
        is_clients: Whether it is an MCP client's world: then the policy's tools are all that it gives access to.
    """

    def __init__(
        self,
        key: str,
        trajectory: str,
        calls: LeasedCalls,
        *,
        bearer: Bearer,
        client: ClientGateway,
        address: str | None,
        is_clients: bool,
    ) -> None:
        self.handle = secrets.token_urlsafe(24)
        self.key, self.bearer, self.trajectory = key or self.handle, bearer, trajectory
        self.client, self.address, self.is_clients = client, address, is_clients
        self.used_at = anyio.current_time()
        """When the last request for it began or ended."""
        self.requests = self.sessions = 0
        """Under way; sessions of MCP clients and subscriptions, which may be silent."""
        self.settled, self.over, self.done = anyio.Event(), anyio.Event(), anyio.Event()
        """It was granted or refused; it is to end; its world is released."""
        self.scope = anyio.CancelScope()
        self.session: Session | None = None
        self.error: GatewayError | None = None
        """Why it was not granted."""
        self.calls = calls
        self.tools: Mapping[tuple[str, str], ToolDefinition] = {}

    def used(self) -> None:
        """Renew it."""
        self.used_at = anyio.current_time()

    def end(self) -> None:
        """Cancel its calls and let its task release the world; return at once."""
        self.over.set()
        self.calls.close()
        # Once granted, its task is not cancelled: it waits for the calls to end, and then leaves the gateway's lease.
        if self.session is None:
            self.scope.cancel()
