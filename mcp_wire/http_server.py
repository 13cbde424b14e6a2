"""`HttpConnection`: one HTTP/1.1 connection of a server; requests are answered directly or by an ASGI application.

It is uvicorn's connection on httptools, which parses each request once. Added are bounds on what a connection may hold
before and after a request is admitted, and a short way for ordinary requests: what uvicorn does for an ASGI application
costs more than the answer to many of them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

BEARER = "mcp_wire.bearer"
"""In the state of a request's scope: what `Site.admit` returned."""
ASKED = "mcp_wire.asked"
"""In the state of a request's scope: `Site.answer` was asked, and left the request to the application."""
KEEP_ALIVE_S = 75
"""How long an idle connection is kept: longer than clients keep one, so that they do not send into a closing one."""
_MOST_UNPARSED = 1 << 15
"""Bytes of a head, or of what stands between chunks, that have arrived without its end."""
_MOST_AHEAD = 64
"""Requests of a connection that wait for the answers to earlier ones."""
_DECISIVE = frozenset((b"authorization", b"host", b"origin", b"mcp-session-id", b"mcp-protocol-version"))
"""Headers of which two values may not be given: one reader would take the first one, and another the last."""
_TEXT = b"text/plain"
_STREAM = (
    b"content-type: text/event-stream\r\ncache-control: no-cache, no-transform\r\nconnection: keep-alive\r\n"
    b"x-accel-buffering: no\r\ntransfer-encoding: chunked\r\n\r\n"
)


class Answer(NamedTuple):
    """An HTTP answer."""

    status: int
    body: bytes
    kind: bytes = b"application/json"


class NotAdmitted(Exception):
    """A request that ends its connection, with this answer."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.status)
        self.answer = answer


class Site(Protocol):
    """What a server makes of requests."""

    path: bytes
    """Where POSTs may be answered directly."""

    def admit(self, request: Request) -> Any:
        """Who sends a request, by its head; None for what anyone may ask. Raises `NotAdmitted`."""

    def may_answer(self, request: Request) -> bool:
        """Whether the head of a POST to `path` leaves a direct answer open."""
        ...

    async def answer(self, request: Request) -> bool:
        """Answer a whole request directly; False leaves it to the application."""
        ...


class Request:
    """A request whose head has arrived.

    Where it is answered directly, it stands in the place of the object that uvicorn makes for an application, and has
    the attributes that the connection looks at there.
    """

    __slots__ = (
        "_connection",
        "bearer",
        "disconnected",
        "head",
        "headers",
        "keep_alive",
        "more_body",
        "on_disconnect",
        "parts",
        "response_complete",
        "streams",
        "target",
    )
    message_event = asyncio.Event()  # set for an application that waits, which there is none

    def __init__(self, connection: HttpConnection) -> None:
        self._connection, self.target, self.head = connection, connection.url, connection.headers
        self.headers = dict(self.head)
        """By name in lower case; of several values the last one."""
        self.parts: list[bytes] = []
        self.bearer: Any = None
        """What `Site.admit` returned."""
        self.streams = False
        """Whether the answer is an event stream, which has begun."""
        self.on_disconnect: Callable[[], None] | None = None
        """Called if the connection is lost before the answer is complete."""
        self.more_body, self.keep_alive, self.response_complete, self.disconnected = True, True, False, False

    @property
    def repeats(self) -> bool:
        """Whether a header has several values."""
        return len(self.headers) < len(self.head)

    @property
    def body(self) -> bytes:
        return self.parts[0] if len(self.parts) == 1 else b"".join(self.parts)

    @property
    def scope(self) -> Any:
        """The ASGI scope of a POST to the site's path."""
        scope = self._connection.new_scope(self.head)
        scope |= {"method": "POST", "path": self.target.decode(), "raw_path": self.target, "query_string": b""}
        scope["state"] |= {BEARER: self.bearer, ASKED: True}
        return scope

    @property
    def is_over(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._connection.transport.is_closing()

    def respond(self, answer: Answer) -> None:
        self._connection.write_answer(answer)

    def send_event(self, event: bytes) -> None:
        """Send a part of an event stream, which is the answer from now on."""
        if not self.streams:
            self.streams = True
            self._connection.write_head(200, _STREAM)
        self._connection.transport.write(_chunk(event))

    def end_stream(self, event: bytes) -> None:
        self._connection.transport.write(_chunk(event) + _chunk(b""))

    async def room(self) -> None:
        """Wait until the transport takes further bytes, or is lost."""
        await self._connection.flow.drain()


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
        self._headers: list[tuple[bytes, bytes]] = []
        self._lines = b""

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

    def lines_of(self, headers: list[tuple[bytes, bytes]]) -> bytes:
        """uvicorn's own headers of answers, another list each second."""
        if headers is not self._headers:
            self._headers, self._lines = headers, b"".join([b"%s: %s\r\n" % each for each in headers])
        return self._lines

    async def sweep(self) -> None:
        """Close connections whose request does not arrive in time, and idle ones, until cancelled."""
        while True:
            await asyncio.sleep(min(self._receive_s / 10, 1))
            now = time.monotonic()
            for connection, since in list(self.late.items()):
                if now - since < self._receive_s:
                    break
                if connection.is_answering:  # it is this server that keeps the next request waiting
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
        self._arriving: Request | None = None
        """A request that is to be answered directly, until it is whole."""
        self._running: RequestResponseCycle | None = None
        """What is being answered; `cycle` is what arrived last."""
        self._last: Answer | None = None
        """The answer that ends the connection. What arrives after its head is ignored: closed at once, a client that
        still sends might miss the answer."""
        self._is_at_end = False
        """Nothing that is left of the request is waited for."""

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
    def is_answering(self) -> bool:
        """Whether a request that has arrived whole is not answered yet."""
        return self._is_busy and not cast(RequestResponseCycle, self._running).more_body

    @property
    def _is_busy(self) -> bool:
        return self._running is not None and not self._running.response_complete

    def data_received(self, data: bytes) -> None:
        self._unparsed += len(data)
        super().data_received(data)
        if self._unparsed > _MOST_UNPARSED:
            self._end_with(Answer(431, b"a head is too long", _TEXT), at_once=True)

    def send_400_response(self, msg: str) -> None:
        self._end_with(Answer(400, msg.encode(), _TEXT), at_once=True)

    def on_message_begin(self) -> None:
        # The scope is made where an application needs one.
        self.url, self.headers = b"", []
        self.among.idle.pop(self, None)
        self.among.late.setdefault(self, time.monotonic())

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value.strip(b" \t")))

    def on_headers_complete(self) -> None:
        self._unparsed = 0
        if self._last is not None or self.transport.is_closing():
            return
        request = Request(self)
        try:
            if request.repeats and _repeated(self.headers, _DECISIVE):
                raise NotAdmitted(Answer(400, b"a header that says who asks, or where, is repeated", _TEXT))
            request.bearer = self.among.site.admit(request)
        except NotAdmitted as refused:
            self._end_with(refused.answer)
            return
        if request.bearer is not None:
            self.among.unadmitted.pop(self, None)
        if self._is_direct(request):
            self._arriving = request
            self.cycle = self._running = cast(RequestResponseCycle, request)
        elif len(self.pipeline) < _MOST_AHEAD:
            self._begin_application(request)
        else:
            self._end_with(Answer(429, b"too many requests were sent ahead", _TEXT))
        # Other headers may follow the body. They were not there when the request was admitted.
        self.headers = []

    def _is_direct(self, request: Request) -> bool:
        """Whether a request is ordinary in its framing, does not wait for others, and may be answered directly."""
        parser, length = cast(Any, self.parser), request.headers.get(b"content-length", b"")
        return (
            self.url == self.among.site.path
            and parser.get_method() == b"POST"
            and not self._is_busy
            and len(length) < 12
            and length.isdigit()
            and int(length) <= self.among.direct_bytes
            and b"expect" not in request.headers
            and not parser.should_upgrade()
            and parser.should_keep_alive()
            and parser.get_http_version() == "1.1"
            and self.among.site.may_answer(request)
        )

    def _begin_application(self, request: Request) -> None:
        self.new_scope(request.head)["state"][BEARER] = request.bearer
        self.expect_100_continue = request.headers.get(b"expect", b"").lower() == b"100-continue"
        was_busy = self._is_busy
        super().on_headers_complete()
        if not was_busy:
            self._running = self.cycle

    def new_scope(self, headers: list[tuple[bytes, bytes]]) -> Any:
        """uvicorn's scope of a request with these headers."""
        now = self.url, self.headers
        super().on_message_begin()
        self.url, self.headers = now
        self.scope["headers"] = headers
        return self.scope

    def on_body(self, body: bytes) -> None:
        self._unparsed = 0
        if self._last is not None:
            return
        if self._arriving is None:
            super().on_body(body)
        else:
            self._arriving.parts.append(body)

    def on_message_complete(self) -> None:
        self._unparsed = 0
        if self._last is not None:
            self._end()
            return
        self.among.late.pop(self, None)
        request, self._arriving = self._arriving, None
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
        now = time.monotonic()
        if self._last is not None:
            self._write_last(self._last)
        elif self in self.among.unadmitted:
            self.among.late.setdefault(self, now)
        elif self not in self.among.late:
            self.among.idle[self] = now

    def write_head(self, status: int, rest: bytes) -> None:
        own = self.among.lines_of(self.server_state.default_headers)
        self.transport.write(b"%s%s%s" % (STATUS_LINE[status], own, rest))

    def write_answer(self, answer: Answer, more: bytes = b"") -> None:
        if self.transport.is_closing():
            return
        if answer.status == 401:
            more += b"www-authenticate: Bearer\r\n"  # RFC 9110, section 15.5.2: the scheme that would be accepted
        form = b"content-type: %s\r\ncontent-length: %d\r\n%s\r\n%s"
        self.write_head(answer.status, form % (answer.kind, len(answer.body), more, answer.body))

    def _end_with(self, answer: Answer, *, at_once: bool = False) -> None:
        """End the connection with this answer, in its turn, once the request has arrived.

        Args:
            at_once: Do not wait for the rest of the request: where it ends is not known.
        """
        if self._last is None:
            self._last = answer
            if not self._is_busy:
                self._write_last(answer)
        if at_once:
            self._end()

    def _write_last(self, answer: Answer) -> None:
        self.write_answer(answer, b"connection: close\r\n")
        if self._is_at_end:
            self.transport.close()

    def _end(self) -> None:
        self._is_at_end = True
        if not self._is_busy:
            self.transport.close()


def _repeated(headers: list[tuple[bytes, bytes]], names: frozenset[bytes]) -> bool:
    found = [name for name, _ in headers if name in names]
    return len(found) > len(set(found))


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)
