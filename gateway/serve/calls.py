"""The calls of one lease: each key is executed at most once, and its outcome is kept for repeated requests."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import anyio

from gateway.errors import DeliveryUnknown, ServerUnavailable
from gateway.serve.bearers import Bearer, Refused

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
        if bearer.calls >= bearer.limits.calls:
            raise Refused(429, f"{bearer.calls} calls are under way already (limits.calls)")
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
