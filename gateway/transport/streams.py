"""The streams that mcp's dispatcher reads and writes over pipes, driven by callbacks instead of tasks."""

from __future__ import annotations

import asyncio
from collections import deque
from types import TracebackType
from typing import Self

import anyio
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCMessage

from gateway.transport.delivery import DELIVERY, Broke, Delivery
from gateway.transport.link import Link

_INBOX_HIGH, _INBOX_LOW = 1000, 100


class Inbox:
    """The read stream. Callbacks fill it, so that filling never waits; a reader that falls behind pauses the pipe."""

    def __init__(self) -> None:
        self._items: deque[SessionMessage] = deque()
        self._arrival = anyio.Event()
        self._closed = False
        self.reader: asyncio.ReadTransport | None = None
        self._full = self._held = self._paused = False

    def put(self, message: JSONRPCMessage) -> None:
        if self._closed:
            return
        # Never refused, even when full: a message that was read cannot be put back. Pausing the pipe is what bounds it.
        self._items.append(SessionMessage(message))
        self._arrival.set()
        if len(self._items) > _INBOX_HIGH:
            self._full = True
            self._pause()

    def hold(self, hold: bool) -> None:
        """Pause reading for a reason of the transport's own, or end that."""
        self._held = hold
        self._pause()

    def _pause(self) -> None:
        wanted = self._full or self._held
        if self.reader is None or wanted is self._paused:
            return
        self._paused = wanted
        self.reader.pause_reading() if wanted else self.reader.resume_reading()

    def close(self) -> None:
        self._closed = True
        self._arrival.set()

    async def receive(self) -> SessionMessage:
        while not self._items:
            if self._closed:
                raise anyio.EndOfStream
            # Replaced only when there is nothing to take, with no `await` before the wait: a `put` in between is
            # impossible.
            self._arrival = anyio.Event()
            await self._arrival.wait()
        if self._full and len(self._items) < _INBOX_LOW:
            self._full = False
            self._pause()
        return self._items.popleft()

    async def aclose(self) -> None:
        self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        self.close()


class OpenStream:
    """The ends of a stream of mcp's that its transport opens and closes: here there is nothing to do."""

    async def aclose(self) -> None:
        pass

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        pass


class Outbox(OpenStream):
    """The write stream. A send never waits: what the pipe does not take at once is buffered, up to `limit` bytes."""

    def __init__(self, link: Link, limit: int) -> None:
        self._link, self._limit = link, limit
        self.pipe: asyncio.WriteTransport | None = None

    async def send(self, item: SessionMessage, /) -> None:
        """Hand a message to the pipe. Raises what mcp takes as a line that is down."""
        line = item.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
        self.write(line, DELIVERY.get() or Delivery())

    def write(self, line: bytes, delivery: Delivery) -> None:
        """Hand a line to the pipe. Raises `BrokenResourceError`, which is explained on `delivery`."""
        if self.pipe is None or self.pipe.is_closing():
            delivery.break_off(Broke.CONNECT, self._link.reason or "the server's input is closed")
            raise anyio.BrokenResourceError
        if self.pipe.get_write_buffer_size() > self._limit:
            self._link.end("the server does not read its input")
            delivery.break_off(Broke.CONNECT, self._link.reason)
            raise anyio.BrokenResourceError
        # Before the write: once asyncio has the line it may be in the pipe, whatever happens next.
        delivery.left()
        self.pipe.write(line)
