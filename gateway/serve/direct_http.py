"""Reads ordinary POSTs to the endpoint from their connections, and leaves every other request to uvicorn.

uvicorn's parser and ASGI take more time for a call than the gateway does. A request that is unusual in any way, or asks
for anything but the endpoint, hands its connection over with all bytes that have arrived, until it is answered.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import uvicorn
    from uvicorn.server import ServerState

    from gateway.serve.app import Answer, ServeApp

KEEP_ALIVE_S = 75
"""How long an idle connection is kept: longer than clients keep one, so that they do not send into a closing one."""
_FIRST_LINE = b"POST /mcp HTTP/1.1\r\n"
_MOST_HEAD_BYTES = 16 << 10
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t -~\x80-\xff]*?)[ \t]*")
_LEASES = b"mcp-rollout/lease"
"""In the body of every request of the lease extension: in its method, or in its `_meta`."""
_UNUSUAL = frozenset((b"transfer-encoding", b"upgrade", b"expect"))
_PHRASES = {status.value: status.phrase.encode() for status in HTTPStatus}


def concerns(headers: Mapping[bytes, bytes], body: bytes) -> bool:
    """Whether `ServeApp.respond` may have an answer to a POST, at a glance."""
    return _LEASES in body or (b"mcp-session-id" in headers and b'"tools/call"' in body)


def read_headers(head: bytes) -> dict[bytes, bytes] | None:
    """Headers by name in lower case; None where one is malformed, repeated, or changes where the request ends."""
    headers: dict[bytes, bytes] = {}
    for line in head.split(b"\r\n"):
        match = _HEADER.fullmatch(line)
        if match is None:
            return None
        name = match[1].lower()
        if name in headers or name in _UNUSUAL:
            return None
        headers[name] = match[2]
    if headers.get(b"connection", b"keep-alive").lower() != b"keep-alive":
        return None
    length = headers.get(b"content-length", b"")
    return headers if b"host" in headers and length.isdigit() and len(length) < 12 else None


class DirectConnection(asyncio.Protocol):
    """One connection, its requests one after the other.

    Args:
        limit: Bytes of a request's body; a longer one is uvicorn's to read, and the application's to refuse.
    """

    def __init__(self, app: ServeApp, limit: int, config: uvicorn.Config, state: ServerState, app_state: Any) -> None:
        self._app, self._limit = app, limit
        self._config, self._state, self._app_state = config, state, app_state
        self._buffer = bytearray()
        self._busy = self._ending = False
        self._since = 0.0
        self._watching: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        # uvicorn calls `shutdown` of what is in this set, and waits until it is empty.
        self._state.connections.add(cast(Any, self))
        self._since = time.monotonic()
        self._watching = asyncio.get_running_loop().call_later(KEEP_ALIVE_S, self._close_idle)

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()

    def shutdown(self) -> None:
        """Close the connection once its request is answered: uvicorn ends."""
        self._ending = True
        if not self._busy:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._busy:
            self._next()
        elif len(self._buffer) > self._limit:
            self._transport.pause_reading()  # requests that were sent ahead of their answers

    def _next(self) -> None:
        """Begin the next request, if all of it has arrived."""
        buffer = self._buffer
        if not buffer.startswith(_FIRST_LINE[: len(buffer)]):
            self._hand_over()
            return
        end = buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(buffer) > _MOST_HEAD_BYTES:
                self._hand_over()
            return
        headers = read_headers(bytes(buffer[len(_FIRST_LINE) : end])) if end <= _MOST_HEAD_BYTES else None
        length = int(headers[b"content-length"]) if headers is not None else 0
        if headers is None or length > self._limit:
            self._hand_over()
            return
        stop = end + 4 + length
        if len(buffer) < stop:
            return
        body = bytes(buffer[end + 4 : stop])
        if not concerns(headers, body):
            self._hand_over()
            return
        head = bytes(buffer[: end + 4])
        del buffer[:stop]
        self._busy = True
        task = asyncio.get_running_loop().create_task(self._serve(head, headers, body))
        # uvicorn waits for these when it ends, and cancels them at the end of its time.
        self._state.tasks.add(task)
        task.add_done_callback(self._state.tasks.discard)

    async def _serve(self, head: bytes, headers: dict[bytes, bytes], body: bytes) -> None:
        # A client that disconnects cancels nothing: it may ask for the outcome again.
        answer = await self._app.respond(headers, body)
        if answer is None:
            # In front of requests that were sent ahead: uvicorn reads the connection from this request on.
            self._buffer[:0] = head + body
            self._hand_over()
            return
        self._write(answer)
        self._busy = False
        self._since = time.monotonic()
        self._state.total_requests += 1
        if self._ending:
            self._transport.close()
        elif not self._transport.is_closing():
            self._transport.resume_reading()
            # Sent ahead; answers have to keep the order of the requests (RFC 9112, section 9.3.2).
            if self._buffer:
                self._next()

    def _write(self, answer: Answer) -> None:
        if self._transport.is_closing():
            return
        head = b"HTTP/1.1 %d %s\r\n" % (answer.status, _PHRASES.get(answer.status, b""))
        lines = b"".join(b"%s: %s\r\n" % header for header in answer.headers)
        self._transport.write(b"%s%s\r\n%s" % (head, lines, answer.body))

    def _hand_over(self) -> None:
        self._leave()
        if self._transport.is_closing():
            return
        # `set_protocol` calls neither of the two methods below: to the event loop the connection is an old one.
        successor = _OneRequest(self._again, self._config, self._state, self._app_state)
        self._transport.set_protocol(successor)
        successor.connection_made(self._transport)
        successor.data_received(bytes(self._buffer))

    def _again(self) -> DirectConnection:
        return DirectConnection(self._app, self._limit, self._config, self._state, self._app_state)

    def _leave(self) -> None:
        self._state.connections.discard(cast(Any, self))
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None

    def _close_idle(self) -> None:
        # The timer is not moved at each request, which would cost more than to look again when it fires.
        left_s = self._since + KEEP_ALIVE_S - time.monotonic()
        if left_s <= 0 and not self._busy:
            self._transport.close()
        else:
            wait_s = max(left_s, 1.0)
            self._watching = asyncio.get_running_loop().call_later(wait_s, self._close_idle)


class _OneRequest(H11Protocol):
    """uvicorn's reader of a connection, until the request that it was handed over for is answered.

    Args:
        again: Makes what reads the connection afterwards.
    """

    def __init__(
        self, again: Callable[[], DirectConnection], config: uvicorn.Config, state: ServerState, app_state: Any
    ) -> None:
        super().__init__(config, state, app_state)
        self._again = again

    def on_response_complete(self) -> None:
        # Only where the request was read to its end: bytes of its body would be taken for the next request.
        between = self.conn.our_state is h11.DONE and self.conn.their_state is h11.DONE
        if not between or self.transport.is_closing():
            super().on_response_complete()
            return
        self.server_state.total_requests += 1
        self._unset_keepalive_if_required()
        self.connections.discard(self)
        self.flow.resume_reading()
        successor = self._again()
        self.transport.set_protocol(successor)
        successor.connection_made(self.transport)
        if sent_ahead := self.conn.trailing_data[0]:
            successor.data_received(sent_ahead)
