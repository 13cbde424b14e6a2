"""`HttpConnection`: one HTTP/1.1 connection of a server; requests are answered directly or by an ASGI application.

It is uvicorn's connection on httptools, which parses each request once. Added are bounds on what a connection may hold
before and after a request is admitted, and a short way for ordinary requests: what uvicorn does for an ASGI application
costs more than the answer to many of them.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from mcp_wire.http_request import BEARER, Answer, Headers, NotAdmitted, Request, Site

KEEP_ALIVE_S = 75
"""How long an idle connection is kept: longer than clients keep one, so that they do not send into a closing one."""
_MOST_UNPARSED = 1 << 15
"""Bytes of a head, or of what stands between chunks, that have arrived without its end."""
_MOST_AHEAD = 64
"""Requests of a connection that wait for the answers to earlier ones."""
_DECISIVE = frozenset((b"authorization", b"host", b"origin", b"mcp-session-id", b"mcp-protocol-version"))
"""Headers of which two values may not be given: one reader would take the first one, and another the last."""
_CLOSE = (b"connection", b"close")


class Connections:
    """The connections of a server, and their bounds.

    Args:
        receive_s: How long a request may take to arrive whole, and the first one of a connection to begin.
        unadmitted: Connections without a request of someone who is known; beyond it, the oldest is closed.
        direct_bytes: Longest body of a request that is answered directly.
    """

    def __init__(self, site: Site, *, receive_s: float, unadmitted: int, direct_bytes: int) -> None:
        self.site, self.direct_bytes = site, direct_bytes
        self._receive_s, self._most_unadmitted = receive_s, unadmitted
        self.unadmitted: dict[HttpConnection, None] = {}
        # In order of time, so that a sweep looks at the oldest ones only.
        self.late: dict[HttpConnection, float] = {}
        """Connections with a part of a request, or none yet, by when it began."""
        self.idle: dict[HttpConnection, float] = {}

    def add(self, connection: HttpConnection) -> None:
        self.late[connection] = time.monotonic()
        self.unadmitted[connection] = None
        if len(self.unadmitted) > self._most_unadmitted:
            oldest = next(iter(self.unadmitted))
            del self.unadmitted[oldest]
            oldest.transport.abort()

    def discard(self, connection: HttpConnection) -> None:
        for each in (self.unadmitted, self.late, self.idle):
            each.pop(connection, None)

    async def sweep(self) -> None:
        """Close connections whose request does not arrive in time, and idle ones, until cancelled."""
        while True:
            await asyncio.sleep(min(self._receive_s / 10, 1))
            now = time.monotonic()
            for connection, since in list(self.late.items()):
                if now - since < self._receive_s:
                    break
                if connection.keeps_waiting:
                    del self.late[connection]
                    self.late[connection] = now
                else:
                    connection.transport.abort()
            for connection, since in list(self.idle.items()):
                if now - since < KEEP_ALIVE_S:
                    break
                connection.transport.close()

    def protocol(self) -> type[asyncio.Protocol]:
        """uvicorn's class of connections, for `uvicorn.Config`."""
        return type("Connection", (HttpConnection,), {"among": self})


class HttpConnection(HttpToolsProtocol):
    """One connection, its requests answered in their order. Until one is admitted, nothing of its body is kept."""

    among: Connections
    app: Any
    """The ASGI application."""

    def __init__(self, *args: Any, **given: Any) -> None:
        super().__init__(*args, **given)
        self._unparsed = 0
        self._direct: Request | None = None
        """What arrives and is to be answered directly."""
        self._running: RequestResponseCycle | None = None
        """What is being answered; `cycle` is what arrived last."""
        self._last: Answer | None = None
        """The answer that ends the connection. What is left of its request is ignored: closed at once, a client that
        still sends might miss the answer."""
        self._is_whole = False
        """That request has arrived."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.among.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.among.discard(self)
        running = self._running
        if isinstance(running, Request):
            if running.on_disconnect is not None:
                running.on_disconnect()
        elif running is not None:
            # uvicorn tells the request that arrived last, which may wait for this one.
            running.disconnected = True
            running.message_event.set()

    @property
    def _is_busy(self) -> bool:
        cycle = cast(RequestResponseCycle | None, self.cycle)
        return cycle is not None and not cycle.response_complete

    @property
    def keeps_waiting(self) -> bool:
        """Whether what arrives waits for the answer to an earlier request."""
        return self._is_busy and (bool(self.pipeline) or not self.cycle.more_body)

    def data_received(self, data: bytes) -> None:
        self._unparsed += len(data)
        super().data_received(data)
        if self._unparsed > _MOST_UNPARSED:
            self._end_with(431, b"a head is too long", is_whole=True)

    def send_400_response(self, msg: str) -> None:
        self._end_with(400, msg.encode(), is_whole=True)

    def on_message_begin(self) -> None:
        # uvicorn's scope is made where an application needs it.
        self.url, self.headers = b"", []
        self.among.idle.pop(self, None)
        self.among.late.setdefault(self, time.monotonic())

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value.strip(b" \t")))

    def on_headers_complete(self) -> None:
        self._unparsed = 0
        if self._last is not None or self.transport.is_closing():
            return
        own, is_busy = self.server_state.default_headers, self._is_busy
        request = Request(self.url, self.headers, own, self.transport, self.flow, self._scope)
        try:
            request.bearer = self.among.site.admit(request)
        except NotAdmitted as refused:
            self._end(refused.answer)
            return
        if request.repeats and _repeats(self.headers, _DECISIVE):
            self._end_with(400, b"a header that says who asks, or where, is repeated")
            return
        if len(self.pipeline) == _MOST_AHEAD:
            self._end_with(429, b"too many requests were sent ahead")
            return
        if request.bearer is not None:
            self.among.unadmitted.pop(self, None)
        if not is_busy and self._is_ordinary(request) and self.among.site.may_answer(request):
            self._direct, self.cycle = request, cast(RequestResponseCycle, request)
        else:
            self._scope(self.headers)["state"][BEARER] = request.bearer
            self.expect_100_continue = request.headers.get(b"expect", b"").lower() == b"100-continue"
            super().on_headers_complete()
        if not is_busy:
            self._running = self.cycle
        # Other headers may follow the body. They were not there when the request was admitted.
        self.headers = []

    def _is_ordinary(self, request: Request) -> bool:
        """Whether a request is a POST whose length is known, and that asks nothing of its connection."""
        parser, length = cast(Any, self.parser), request.headers.get(b"content-length", b"")
        return (
            parser.get_method() == b"POST"
            and len(length) < 12
            and length.isdigit()
            and int(length) <= self.among.direct_bytes
            and b"expect" not in request.headers
            and not parser.should_upgrade()
            and parser.should_keep_alive()
            and parser.get_http_version() == "1.1"
        )

    def _scope(self, headers: Headers) -> Any:
        url, kept = self.url, self.headers
        super().on_message_begin()
        self.url, self.headers = url, kept
        self.scope["headers"] = headers
        return self.scope

    def on_body(self, body: bytes) -> None:
        self._unparsed = 0
        if self._direct is not None:
            self._direct.parts.append(body)
        elif self._last is None:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._unparsed = 0
        if self._last is not None:
            self._end(self._last, is_whole=True)
            return
        self.among.late.pop(self, None)
        request, self._direct = self._direct, None
        if request is None:
            super().on_message_complete()
            return
        request.more_body = False
        task = self.loop.create_task(self._answer(request))
        # uvicorn waits for these when it ends, and cancels them at the end of its time.
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _answer(self, request: Request) -> None:
        try:
            is_answered = await self.among.site.answer(request)
        except BaseException:  # cancelled, or a defect of the site's: there is no answer
            self.transport.abort()
            raise
        request.on_disconnect = None
        if not is_answered:
            await self._pass(request)
            return
        request.response_complete = True
        if not request.keep_alive:
            self.transport.close()
        self.on_response_complete()

    async def _pass(self, request: Request) -> None:
        """Let the application answer a request that has arrived whole."""
        cycle = RequestResponseCycle(
            scope=request.scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=False,
            keep_alive=request.keep_alive,
            on_response=self.on_response_complete,
        )
        cycle.body, cycle.more_body, cycle.disconnected = bytearray(request.body), False, request.disconnected
        cycle.message_event.set()
        if cast(Any, self.cycle) is request:
            self.cycle = cycle
        self._running = cycle
        await cycle.run_asgi(self.app)

    def on_response_complete(self) -> None:
        if self.pipeline:
            self._running = self.pipeline[-1][0]
            super().on_response_complete()
            return
        # Without a timer for each answer, which uvicorn would set.
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self._last is not None:
            self._write_last(self._last)
        elif self in self.among.unadmitted:
            self.among.late.setdefault(self, time.monotonic())
        elif self not in self.among.late:
            self.among.idle[self] = time.monotonic()

    def _end_with(self, status: int, problem: bytes, *, is_whole: bool = False) -> None:
        self._end(Answer(status, problem, b"text/plain"), is_whole=is_whole)

    def _end(self, answer: Answer, *, is_whole: bool = False) -> None:
        """End the connection with an answer, in its turn, once its request has arrived.

        Args:
            is_whole: Whether it has, or its end cannot be found.
        """
        is_first, self._last = self._last is None, self._last or answer
        self._is_whole |= is_whole
        if self.keeps_waiting:
            return
        if is_first:
            self._write_last(answer)
        elif self._is_whole:
            self.transport.close()

    def _write_last(self, answer: Answer) -> None:
        # Of a broken body, the answer may have begun.
        if not self._is_busy or not self.cycle.response_started:
            self.transport.write(answer.encoded([*self.server_state.default_headers, _CLOSE]))
        if self._is_whole:
            self.transport.close()


def _repeats(headers: Headers, names: frozenset[bytes]) -> bool:
    found = [name for name, _ in headers if name in names]
    return len(found) > len(set(found))
