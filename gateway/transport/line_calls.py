"""Lines out and in, over a server's pipes or in memory: `tools/call` requests, and what each line of the server is."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import anyio
import structlog
from mcp_types import jsonrpc_message_adapter
from pydantic_core import to_json

from gateway.transport.channel import Json, OwnChannel, is_response, result_of
from gateway.transport.delivery import Delivery
from gateway.transport.lines import Oversize, parse_message, read_line, unusable_answer
from gateway.transport.link import Link
from gateway.transport.streams import Inbox, Outbox

log = structlog.get_logger(__name__)


class LineCalls(OwnChannel):
    """The channel of one connection. Its transport gives it each message that arrives."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._waiting: dict[int, asyncio.Future[Json]] = {}
        """For the responses, by the number of the request."""

    async def answer(self, request: Json, headers: Mapping[str, str], delivery: Delivery) -> Json:
        """As `OwnChannel.answer`."""
        self._outbox.write(to_json(request) + b"\n", delivery)
        # No `await` between the write and the registration: the answer is read by a callback, which cannot run before.
        number: int = request["id"]
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            return result_of(await future)
        finally:
            # Also when cancelled: a late answer then goes to mcp's dispatcher, which ignores ids that it does not know.
            self._waiting.pop(number, None)

    def take(self, message: Json) -> bool:
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

    def close(self) -> None:
        """The connection is down, as its link says: nothing more is answered."""
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(anyio.BrokenResourceError())
        self._waiting.clear()


class LineReader:
    """Reads the lines of one connection; a bad line affects no other.

    Args:
        server: Its name, for the log.
        limit: Bytes of a line, for the message about a longer one.
    """

    def __init__(self, server: str, link: Link, calls: LineCalls, inbox: Inbox, limit: int) -> None:
        self._server, self._link, self._calls, self._inbox, self._limit = server, link, calls, inbox, limit

    def read(self, line: bytes | Oversize) -> None:
        if isinstance(line, Oversize):
            self._refuse(line)
        elif line.strip():
            self._accept(line)

    def _accept(self, line: bytes) -> None:
        # Answers to calls go straight to their callers; all other messages are validated and go to mcp or to the link.
        found = read_line(line)
        if found is not None and self._calls.take(found):
            return
        message = parse_message(found) if found is not None else None
        if message is None:
            if not self._link.stray:
                self._link.stray = self._link.redact(line.decode("utf-8", "replace"))[:80]
                log.warning("lines.garbage", server=self._server, begins=self._link.stray)
        elif self._link.is_for_mcp(message):
            self._inbox.put(message)

    def _refuse(self, line: Oversize) -> None:
        limit, answered = self._limit, line.answered_id()
        log.warning("lines.oversize", server=self._server, bytes=line.size, limit=limit, answers=answered)
        if answered is not None:
            problem = f"the result has {line.size} bytes, max_message_bytes is {limit}"
            answer = unusable_answer(answered, problem)
            if not self._calls.take(answer):
                self._inbox.put(jsonrpc_message_adapter.validate_python(answer))
