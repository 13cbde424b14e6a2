"""Lines out and in, over a server's pipes or in memory: `tools/call` requests, and what each line of the server is."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import anyio
import structlog
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCMessage, jsonrpc_message_adapter
from pydantic_core import to_json

from gateway.transport.channel import OwnChannel
from gateway.transport.delivery import DELIVERY, Broke, Delivery
from gateway.transport.link import Link
from gateway.transport.messages import Json, is_response, parse_message, read_line, result_of, unusable_answer
from mcp_wire.lines import Oversize
from mcp_wire.streams import Inbox, OpenStream

log = structlog.get_logger(__name__)


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
        if found is not None and self._answer(found):
            return
        message = parse_message(found) if found is not None else None
        if message is None:
            if line.strip() and not self._link.stray:
                self._link.stray = self._link.redact(line.decode("utf-8", "replace"))[:80]
                log.warning("lines.garbage", server=self._server, begins=self._link.stray)
        elif self._link.is_for_mcp(message):
            self._give_to_mcp(message)

    def _answer(self, message: Json) -> bool:
        """Whether a message is the response to a request of this channel, whose caller then gets it."""
        if not is_response(message):
            return False
        number = message.get("id")
        if isinstance(number, str) and number.isascii() and number.isdigit() and len(number) < 19:
            number = int(number)  # some servers make text of a number
        future = self._waiting.pop(number, None) if type(number) is int else None
        if future is None:
            return False
        if not future.done():
            future.set_result(message)
        return True

    def _refuse(self, line: Oversize) -> None:
        limit, answered = self._limit, line.answered_id()
        log.warning("lines.oversize", server=self._server, bytes=line.size, limit=limit, answers=answered)
        if answered is not None:
            answer = unusable_answer(answered, f"the result has {line.size} bytes, max_message_bytes is {limit}")
            if not self._answer(answer):
                self._give_to_mcp(jsonrpc_message_adapter.validate_python(answer))

    def _give_to_mcp(self, message: JSONRPCMessage) -> None:
        self.inbox.put(SessionMessage(message))


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
        delivery.left = True
        self.pipe.write(line)
