"""`tools/call` in lines, over a server's pipes or in memory: a line out, and the line that answers it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import anyio
from pydantic_core import to_json

from gateway.transport.channel import Json, is_response, result_of
from gateway.transport.delivery import Delivery
from gateway.transport.streams import Outbox


class LineCalls:
    """The channel of one connection. Its transport gives it each message that arrives."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._waiting: dict[int, asyncio.Future[Json]] = {}
        """For the responses, by the number of the request."""

    async def send(self, request: Json, headers: Mapping[str, str], delivery: Delivery) -> Json:
        """As `Channel.send`."""
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
