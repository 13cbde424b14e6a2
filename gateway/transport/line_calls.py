"""Lines out and in, over a server's pipes or in memory: `tools/call` requests, and what each line of the server is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Protocol, runtime_checkable

import anyio
import structlog
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCMessage
from pydantic_core import to_json

from mcp_rollout.gateway.config.models import ServerConfig
from mcp_rollout.gateway.transport.channel import OwnChannel
from mcp_rollout.gateway.transport.delivery import DELIVERY, Broke, Delivery
from mcp_rollout.gateway.transport.link import Link
from mcp_rollout.gateway.transport.messages import (
    Json,
    answered_id,
    parse_message,
    read_line,
    result_of,
    unusable_answer,
)
from mcp_rollout.gateway.transport.unmatched import Unanswered
from mcp_rollout.mcp_wire.lines import Oversize
from mcp_rollout.mcp_wire.streams import Inbox, OpenStream

log = structlog.get_logger(__name__)

_MOST_ANSWERED = 64
"""Calls whose answers are remembered, so that another answer to one of them is noticed."""


class LineCalls(OwnChannel):
    """The lines of one connection: its channel, the streams of mcp's session, and where each line of the server goes.

    Args:
        server: Its name, for the log.
        limit: Bytes of a line; four times as many may wait for the server to read them.
    """

    def __init__(self, server: str, link: Link, limit: int) -> None:
        self._server, self._link, self._limit = server, link, limit
        self.inbox = Inbox[SessionMessage]()
        self.outbox = Outbox(link, 4 * limit)
        self._waiting: dict[int, asyncio.Future[Json]] = {}
        """For the responses, by the number of the request."""
        self._answered: dict[int, int] = {}
        """The hash of the line that answered, for the latest requests."""

    def open(
        self, output: asyncio.WriteTransport, source: asyncio.ReadTransport | None = None
    ) -> tuple[Inbox[SessionMessage], Outbox]:
        """Begin to write to the server; returns the streams of mcp's session.

        Args:
            source: What is paused while mcp's session falls behind.
        """
        self.outbox.pipe, self.inbox.source = output, source
        self._link.carry(self)
        return self.inbox, self.outbox

    def close(self) -> None:
        """The connection is down, as its link says: nothing more is answered."""
        self.inbox.close()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(anyio.BrokenResourceError())
        self._waiting.clear()

    async def answer(self, request: Json, headers: Mapping[str, str], delivery: Delivery) -> Json:
        """As `OwnChannel.answer`."""
        self.outbox.write(to_json(request) + b"\n", delivery)
        # No `await` between the write and the registration: the answer is read by a callback, which cannot run before.
        number: int = request["id"]
        self.outbox.unanswered.asked(number, request["method"])
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            return result_of(await future)
        finally:
            # Also when cancelled: a late answer then goes to mcp's dispatcher, which ignores ids that it does not know.
            self._waiting.pop(number, None)

    def read(self, line: bytes | Oversize) -> None:
        """Take a line of the server; a bad one affects no other."""
        if isinstance(line, Oversize):
            return self._refuse(line)
        # Answers to calls go straight to their callers; all other messages are validated and go to mcp or to the link.
        found = read_line(line)
        for each in (None,) if found is None else self.outbox.unanswered.read(found):
            self._take(each, line)

    def _take(self, found: Json | None, line: bytes) -> None:
        if found is not None and self._answer(found, line):
            return
        message = parse_message(found) if found is not None else None
        if message is None:
            if line.strip() and not self._link.stray:
                self._link.stray = self._link.redact(line.decode("utf-8", "replace"))[:80]
                log.warning("lines.garbage", server=self._server, begins=self._link.stray)
        elif self._link.is_for_mcp(message):
            self._give_to_mcp(message)

    def _answer(self, message: Json, line: bytes) -> bool:
        """Whether a message is the response to a request of this channel, whose caller then gets it."""
        number = answered_id(message)
        if not isinstance(number, int):
            return False
        future = self._waiting.pop(number, None)
        if future is None:
            if self._answered.get(number, hash(line)) != hash(line):
                self._link.answered_another = True  # one of the two answers was meant for another request
            return False
        self._answered[number] = hash(line)
        if len(self._answered) > _MOST_ANSWERED:
            del self._answered[next(iter(self._answered))]
        if not future.done():
            future.set_result(message)
        return True

    def _refuse(self, line: Oversize) -> None:
        limit, answered = self._limit, line.answered_id()
        log.warning("lines.oversize", server=self._server, bytes=line.size, limit=limit, answers=answered)
        if answered is not None:
            answer = unusable_answer(answered, f"the result has {line.size} bytes, max_message_bytes is {limit}")
            for each in self.outbox.unanswered.read(answer):
                self._take(each, b"")

    def _give_to_mcp(self, message: JSONRPCMessage) -> None:
        self.inbox.put(SessionMessage(message))


class Outbox(OpenStream):
    """The write stream. A send never waits: what the pipe does not take at once is buffered, up to `limit` bytes."""

    def __init__(self, link: Link, limit: int) -> None:
        self._link, self._limit = link, limit
        self.pipe: asyncio.WriteTransport | None = None
        self.unanswered = Unanswered()

    async def send(self, item: SessionMessage, /) -> None:
        """Hand a message to the pipe. Raises what mcp takes as a line that is down."""
        line = item.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
        self.write(line, DELIVERY.get() or Delivery())
        self.unanswered.wrote(item.message)

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
        delivery.left = True
        self.pipe.write(line)


@runtime_checkable
class LineExchange(Protocol):
    """What a `factory` may return in place of the SDK's server; `mcp_servers.kit.InProcess` is one."""

    def exchange_lines(
        self, receive: Callable[[bytes], None], /
    ) -> AbstractAsyncContextManager[Callable[[bytes], None]]:
        """Serve one client while the context is open.

        Args:
            receive: Takes each line of the server, one JSON-RPC message without a newline.

        Returns:
            On entry, what takes the lines of the client. Neither function may call the other one: a line is read in a
            later iteration of the event loop.
        """
        ...


class MemoryTransport:
    """Opens the exchange on entry and closes it on exit; the pair it yields is mcp's streams."""

    def __init__(self, name: str, server: LineExchange, config: ServerConfig, link: Link) -> None:
        self._most_bytes = config.max_message_bytes
        self._calls = LineCalls(name, link, config.max_message_bytes)
        self._exchange = server.exchange_lines(self._receive)
        self._lines: _Lines | None = None

    async def __aenter__(self) -> tuple[Inbox[SessionMessage], Outbox]:
        self._lines = _Lines(await self._exchange.__aenter__())
        return self._calls.open(self._lines)

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        self._calls.close()
        if self._lines is not None:
            self._lines.close()
        await self._exchange.__aexit__(exc_type, exc_val, exc_tb)

    def _receive(self, line: bytes) -> None:
        self._calls.read(Oversize.of(line) if len(line) > self._most_bytes else line)


class _Lines(asyncio.WriteTransport):
    """The server's function as the pipe that `Outbox` writes to."""

    def __init__(self, take: Callable[[bytes], None]) -> None:
        super().__init__()
        self._take, self._closed = take, False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._take(bytes(data).rstrip(b"\n"))

    def get_write_buffer_size(self) -> int:
        return 0  # the server takes each line in the event loop's next iteration

    def is_closing(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._closed = True
