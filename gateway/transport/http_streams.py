"""mcp's read and write stream over HTTP, and posts whose answers have no reader.

mcp's HTTP transport sends nothing else until a notification, or an answer of ours to a server's request, has itself
been answered: one that is lost would block every call on the connection. Here such messages are posted in the
background. Notifications from the server are taken out before mcp makes two tasks of each.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import Context, copy_context
from types import TracebackType
from typing import Any, Self

import anyio
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCNotification, JSONRPCRequest

from gateway.transport.delivery import DELIVERY, Delivery
from gateway.transport.lines import bounded
from gateway.transport.link import FOR_MCP, Link

_POSTS_AT_ONCE = 8
_MOST_WAITING_POSTS = 1000
_AT_A_STRETCH = 100
"""Notifications handled before other tasks get their turn."""


class BackgroundPosts:
    """Runs what is given to `start` until it is done, for at most `most_s` seconds, or until the block is left.

    A few run at a time, since each takes a connection, and only so many wait: a server that sends requests faster than
    it takes the answers gets no answer to some.
    """

    def __init__(self, most_s: float) -> None:
        self._most_s = most_s
        self._open = False
        self._slots = anyio.CapacityLimiter(_POSTS_AT_ONCE)
        self._waiting = 0

    def start(self, send: Callable[[], Awaitable[None]]) -> None:
        """Return at once; `send` must not raise."""
        if self._open and self._waiting < _MOST_WAITING_POSTS:
            self._waiting += 1
            self._tasks.start_soon(self._bounded, send)

    async def _bounded(self, send: Callable[[], Awaitable[None]]) -> None:
        try:
            # The wait for a slot included: a server that takes no answers leaves none waiting for longer.
            with anyio.move_on_after(self._most_s):
                async with self._slots:
                    await send()
        finally:
            self._waiting -= 1

    async def __aenter__(self) -> Self:
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._open = True
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> bool | None:
        self._open = False
        self._tasks.cancel_scope.cancel()
        return await self._tasks.__aexit__(exc_type, exc_val, exc_tb)


class _Stream:
    """A stream of mcp's whose lifetime is that of the one it wraps."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> bool | None:
        return await self._inner.__aexit__(exc_type, exc_val, exc_tb)


class WriteStream(_Stream):
    """mcp's write stream; a message that no caller waits for is sent under a background `Delivery`."""

    async def send(self, item: SessionMessage, /) -> None:
        if not _is_background(item):
            await self._inner.send(item)
            return
        # mcp's transport copies the context of `send` for its post, so `CallGuard` finds the delivery there.
        outer = DELIVERY.set(Delivery(background=True))
        try:
            await self._inner.send(item)
        finally:
            DELIVERY.reset(outer)


def _is_background(item: SessionMessage) -> bool:
    message = item.message
    if isinstance(message, JSONRPCNotification):
        return message.method != "notifications/initialized"  # a server may refuse requests that overtake it
    return not isinstance(message, JSONRPCRequest)


class ReadStream(_Stream):
    """mcp's read stream without notifications, which go to `Link.on_notification`, and with what `put` adds.

    `pump` runs as long as the connection. Until a message is taken, whatever brings the next one waits.
    """

    def __init__(self, inner: Any, link: Link) -> None:
        super().__init__(inner)
        self._link = link
        self._taken = 0
        # No buffer: mcp's dispatcher takes one message before the next is read from the socket, so a flood is held back
        # there.
        self._send, self._receive = anyio.create_memory_object_stream[tuple[SessionMessage | Exception, Context]](0)
        self.last_context: Context | None = None
        """The context that the last message was sent in; mcp's dispatcher reads it."""

    async def put(self, message: SessionMessage) -> None:
        """Add a message that arrived in the caller's context. Raises `BrokenResourceError` once it is closed."""
        await self._send.send((message, copy_context()))

    async def pump(self) -> None:
        """Take what mcp's transport brings, until it ends."""
        with self._send, suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            async for item in self._inner:
                await self._take(item, self._inner.last_context)

    async def _take(self, item: SessionMessage | Exception, context: Context) -> None:
        if isinstance(item, SessionMessage):
            item.message = bounded(item.message)
        notification = _to_link(item)
        if notification is None:
            await self._send.send((item, context))
            return
        self._link.on_notification(notification.method, notification.params, context)
        self._taken += 1
        if self._taken % _AT_A_STRETCH == 0:
            await anyio.lowlevel.checkpoint()

    async def receive(self) -> SessionMessage | Exception:
        try:
            item, self.last_context = await self._receive.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            # mcp's dispatcher fails its own requests only; the link tells the connection's owner.
            self._link.end("the connection ended")
            raise
        return item

    async def aclose(self) -> None:
        self._receive.close()
        await super().aclose()

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> bool | None:
        self._receive.close()
        return await super().__aexit__(exc_type, exc_val, exc_tb)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None


def _to_link(item: SessionMessage | Exception) -> JSONRPCNotification | None:
    """The notification in an item that mcp need not see."""
    message = item.message if isinstance(item, SessionMessage) else None
    return message if isinstance(message, JSONRPCNotification) and message.method not in FOR_MCP else None
