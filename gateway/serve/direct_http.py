"""Reads ordinary POSTs to the endpoint from their connections, and leaves every other request to uvicorn.

uvicorn's parser and ASGI take more time for a call than the gateway does. A request that is unusual in any way, or asks
for anything but the endpoint, hands its connection over with all bytes that have arrived, until it is answered.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from gateway.serve.bearers import Refused

if TYPE_CHECKING:
    import uvicorn
    from uvicorn.server import ServerState

    from gateway.serve.app import Answer, ServeApp
    from gateway.serve.bearers import Bearer
    from gateway.serve.config import ServeConfig

ADMITTED = "mcp-rollout.admitted"
"""In a request's state: what notes that its connection has shown a token."""
BEGUN = "mcp-rollout.begun"
"""In a request's state: `ServeApp.respond` was asked for its answer, and had none."""
KEEP_ALIVE_S = 75
"""How long an idle connection is kept: longer than clients keep one, so that they do not send into a closing one."""
_FIRST_LINE = b"POST /mcp HTTP/1.1\r\n"
_MOST_HEAD_BYTES = 16 << 10
_BARE_END = re.compile(rb"\n\r?\n")
"""The end of a head with line ends that RFC 9112 lets a recipient accept."""
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


class Unadmitted:
    """The connections that have sent no request with a token of this server, the oldest first.

    Args:
        most: Beyond it, the oldest is closed: a client sends its request as soon as it is connected.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._transports: dict[asyncio.Transport, None] = {}

    def __contains__(self, transport: asyncio.Transport) -> bool:
        return transport in self._transports

    def add(self, transport: asyncio.Transport) -> None:
        self._transports[transport] = None
        if len(self._transports) > self._most:
            oldest = next(iter(self._transports))
            del self._transports[oldest]
            oldest.abort()

    def discard(self, transport: asyncio.Transport) -> None:
        self._transports.pop(transport, None)


class Arriving(NamedTuple):
    """A request whose head has arrived, with a token of this server."""

    headers: dict[bytes, bytes]
    bearer: Bearer
    body: int
    """Where the body begins in the buffer."""
    stop: int


class DirectConnection(asyncio.Protocol):
    """One connection, its requests one after the other.

    Until a request's token was looked at, nothing of its body is kept.
    """

    def __init__(
        self,
        app: ServeApp,
        limits: ServeConfig,
        unadmitted: Unadmitted,
        config: uvicorn.Config,
        state: ServerState,
        app_state: Any,
    ) -> None:
        self._app, self._limits, self._unadmitted = app, limits, unadmitted
        self._config, self._state, self._app_state = config, state, app_state
        self._buffer = bytearray()
        self._arriving: Arriving | None = None
        self._busy = self._ending = False
        self._ignored = 0
        """Bytes of a refused request's body that its client may still send: closed before, it might miss the answer."""
        self._since = 0.0
        self._watching: asyncio.TimerHandle | None = None
        self._late: asyncio.TimerHandle | None = None
        """Closes the connection where a request does not arrive whole in time."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._unadmitted.add(cast("asyncio.Transport", transport))
        self.resume(cast("asyncio.Transport", transport))

    def resume(self, transport: asyncio.Transport) -> None:
        """Read a connection, which may be an old one."""
        self._transport = transport
        if transport in self._unadmitted:
            self._expect()
        # uvicorn calls `shutdown` of what is in this set, and waits until it is empty.
        self._state.connections.add(cast(Any, self))
        self._since = time.monotonic()
        self._watching = asyncio.get_running_loop().call_later(KEEP_ALIVE_S, self._close_idle)

    def connection_lost(self, exc: Exception | None) -> None:
        self._unadmitted.discard(self._transport)
        self._leave()

    def shutdown(self) -> None:
        """Close the connection once its request is answered: uvicorn ends."""
        self._ending = True
        if not self._busy:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        if self._ignored:
            self._ignored -= min(self._ignored, len(data))
            if not self._ignored:
                self._transport.close()
            return
        self._buffer += data
        if not self._busy:
            self._next()
        elif len(self._buffer) > self._limits.max_request_bytes:
            self._transport.pause_reading()  # requests that were sent ahead of their answers

    def _next(self) -> None:
        """Begin the next request, if all of it has arrived."""
        if self._arriving is None and not self._read_head():
            return
        buffer, request = self._buffer, self._arriving
        assert request is not None
        if len(buffer) < request.stop:
            self._expect()
            return
        self._arrived()
        body = bytes(buffer[request.body : request.stop])
        if not concerns(request.headers, body):
            self._hand_over()
            return
        head = bytes(buffer[: request.body])
        del buffer[: request.stop]
        self._arriving, self._busy = None, True
        task = asyncio.get_running_loop().create_task(self._serve(head, request, body))
        # uvicorn waits for these when it ends, and cancels them at the end of its time.
        self._state.tasks.add(task)
        task.add_done_callback(self._state.tasks.discard)

    def _read_head(self) -> bool:
        """Whether there is a head of a request that is read here, and its bearer is admitted."""
        buffer = self._buffer
        end = buffer.find(b"\r\n\r\n", 0, _MOST_HEAD_BYTES + 4)
        if not buffer.startswith(_FIRST_LINE[: len(buffer)]):
            self._hand_over()
            return False
        if end < 0:
            if len(buffer) > _MOST_HEAD_BYTES or _BARE_END.search(buffer):
                self._hand_over()
            else:
                self._expect()
            return False
        headers = read_headers(bytes(buffer[len(_FIRST_LINE) : end]))
        if headers is None:
            self._hand_over()
            return False
        length, begin = int(headers[b"content-length"]), end + 4
        try:
            bearer = self._app.admit(headers)
        except Refused as refused:
            self._refuse(self._app.refused(refused), begin + length)
            return False
        self._unadmitted.discard(self._transport)
        if length > self._limits.max_request_bytes:
            self._hand_over()
            return False
        self._arriving = Arriving(headers, bearer, begin, begin + length)
        return True

    def _refuse(self, answer: Answer, stop: int) -> None:
        self._write(answer, b"connection: close\r\n")
        self._ignored = stop - min(len(self._buffer), stop)
        self._buffer.clear()
        if self._ignored:
            self._expect()
        else:
            self._transport.close()

    def _expect(self) -> None:
        """Close the connection unless the request has arrived in time, from its first byte on."""
        if self._late is None:
            self._late = asyncio.get_running_loop().call_later(self._limits.receive_s, self._transport.abort)

    def _arrived(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    async def _serve(self, head: bytes, request: Arriving, body: bytes) -> None:
        # A client that disconnects cancels nothing: it may ask for the outcome again.
        answer = await self._app.respond(request.headers, body, request.bearer)
        if answer is None:
            # In front of requests that were sent ahead: uvicorn reads the connection from this request on.
            self._buffer[:0] = head + body
            self._hand_over(begun=True)
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

    def _write(self, answer: Answer, more: bytes = b"") -> None:
        if self._transport.is_closing():
            return
        head = b"HTTP/1.1 %d %s\r\n" % (answer.status, _PHRASES.get(answer.status, b""))
        lines = b"".join(b"%s: %s\r\n" % header for header in answer.headers)
        self._transport.write(b"%s%s%s\r\n%s" % (head, lines, more, answer.body))

    def _hand_over(self, *, begun: bool = False) -> None:
        self._leave()
        if self._transport.is_closing():
            return
        # `set_protocol` calls neither of the two methods below: to the event loop the connection is an old one.
        admitted = partial(self._unadmitted.discard, self._transport)
        app_state = {**self._app_state, ADMITTED: admitted, BEGUN: begun}
        successor = _OneRequest(self._again, self._unadmitted, self._config, self._state, app_state)
        self._transport.set_protocol(successor)
        successor.connection_made(self._transport)
        successor.expect(self._limits.receive_s)
        successor.data_received(bytes(self._buffer))

    def _again(self) -> DirectConnection:
        limits, unadmitted = self._limits, self._unadmitted
        return DirectConnection(self._app, limits, unadmitted, self._config, self._state, self._app_state)

    def _leave(self) -> None:
        self._state.connections.discard(cast(Any, self))
        self._arrived()
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
        self,
        again: Callable[[], DirectConnection],
        unadmitted: Unadmitted,
        config: uvicorn.Config,
        state: ServerState,
        app_state: Any,
    ) -> None:
        super().__init__(config, state, app_state)
        self._again, self._unadmitted = again, unadmitted
        self._late: asyncio.TimerHandle | None = None

    def expect(self, receive_s: float) -> None:
        """Close the connection unless the request has arrived whole within this time."""
        self._late = asyncio.get_running_loop().call_later(receive_s, self._close_half)

    def _close_half(self) -> None:
        if self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unadmitted.discard(self.transport)
        self._end_timer()
        super().connection_lost(exc)

    def _end_timer(self) -> None:
        if self._late is not None:
            self._late.cancel()

    def on_response_complete(self) -> None:
        # Only where the request was read to its end: bytes of its body would be taken for the next request.
        between = self.conn.our_state is h11.DONE and self.conn.their_state is h11.DONE
        if not between or self.transport.is_closing():
            super().on_response_complete()
            return
        self._end_timer()
        self.server_state.total_requests += 1
        self._unset_keepalive_if_required()
        self.connections.discard(self)
        self.flow.resume_reading()
        successor = self._again()
        self.transport.set_protocol(successor)
        successor.resume(self.transport)
        if sent_ahead := self.conn.trailing_data[0]:
            successor.data_received(sent_ahead)
