"""`HttpConnection`: one HTTP/1.1 connection of a server; requests are answered directly or by an ASGI application.

It is uvicorn's connection on httptools, which parses each request once. Added are bounds on what a connection may hold
before and after a request is admitted, and a short way for ordinary requests: what uvicorn does for an ASGI application
costs more than the answer to many of them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

import uvicorn
from httptools import HttpParserError, HttpParserUpgrade
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from mcp_rollout.mcp_wire.http_connections import Connections
from mcp_rollout.mcp_wire.http_request import DirectAnswer, Headers, NotAdmitted, Request, Site

_MOST_UNPARSED = 1 << 15
"""Bytes of a head, or of what stands between chunks."""
_MOST_HEADERS = 100
_MOST_AHEAD, _MOST_BYTES_AHEAD = 64, 1 << 16
"""Of a connection's requests that wait for the answers to earlier ones. What is beyond the bytes is left unread, and a
disconnect is not noticed behind it."""
_DECISIVE = frozenset((b"authorization", b"host", b"origin", b"mcp-session-id", b"mcp-protocol-version"))
"""Headers of which two values may not be given: one reader would take the first one, and another the last."""
_CLOSE = (b"connection", b"close")


def protocol(site: Site, among: Connections, *, direct_bytes: int) -> type[asyncio.Protocol]:
    """uvicorn's class of connections, for `uvicorn.Config`.

    Args:
        direct_bytes: Longest body of a request that is answered directly.
    """
    return type("Connection", (HttpConnection,), {"site": site, "among": among, "direct_bytes": direct_bytes})


def http_server(
    app: Any, site: Site, among: Connections, *, direct_bytes: int = 0, stop_s: float = 5.0
) -> uvicorn.Server:
    """uvicorn with these connections, for an ASGI application and the `Site` that admits its requests.

    Args:
        stop_s: How long it may take to close connections, in whole seconds.
    """
    return Server(
        uvicorn.Config(
            app,
            http=protocol(site, among, direct_bytes=direct_bytes),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            timeout_graceful_shutdown=int(stop_s),
        )
    )


class Server(uvicorn.Server):
    """uvicorn without handlers of its own for signals: the program decides."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


class HttpConnection(HttpToolsProtocol):
    """One connection, its requests answered in their order. Until one is admitted, nothing of its body is kept."""

    site: Site
    among: Connections
    direct_bytes: int
    app: Any
    """The ASGI application."""

    def __init__(self, *args: Any, **given: Any) -> None:
        super().__init__(*args, **given)
        self._unparsed = self._head = self._ahead = 0
        self._direct: Request | None = None
        """What arrives and is to be answered directly."""
        self._running: RequestResponseCycle | None = None
        """What is being answered. `cycle` is what arrived last, and None once it is answered."""
        self._last: DirectAnswer | None = None
        """The answer that ends the connection. What is left of its request is ignored: closed at once, a client that
        still sends might miss the answer."""
        self._is_whole = self._is_written = False
        """That request has arrived, or its end cannot be found; that answer is written."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        super().on_message_begin()
        self._common = self.scope
        """What the scopes of all requests have."""
        self.among.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.among.discard(self)
        running = self._running
        if running is not None:
            # uvicorn tells the request that arrived last, which may wait for this one.
            running.disconnected = True
            running.message_event.set()
            if isinstance(running, Request) and running.on_disconnect is not None:
                running.on_disconnect()
        # They refer to the connection, and it to them.
        self.cycle = self._running = self._direct = None  # type: ignore[assignment]
        self.pipeline.clear()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.among.wait_for_reader(self)

    def resume_writing(self) -> None:
        super().resume_writing()
        self.among.unread.pop(self, None)

    @property
    def _is_busy(self) -> bool:
        return cast(RequestResponseCycle | None, self.cycle) is not None

    @property
    def keeps_waiting(self) -> bool:
        """Whether what arrives waits for the answer to an earlier request."""
        return self._is_busy and (bool(self.pipeline) or not self.cycle.more_body)

    def data_received(self, data: bytes) -> None:
        # In pieces, so that the bounds hold however much arrives at once.
        for start in range(0, len(data), _MOST_UNPARSED):
            self._parse(memoryview(data)[start : start + _MOST_UNPARSED])
        # uvicorn reads nothing more as soon as a request waits, and would not notice that the client has left.
        if self.pipeline or (self._last is not None and self.keeps_waiting):
            self._ahead += len(data)
            if self._ahead < _MOST_BYTES_AHEAD:
                self.flow.resume_reading()
            else:
                self.flow.pause_reading()

    def _parse(self, data: memoryview | bytes) -> None:
        self._unparsed += len(data)
        parser, left = cast(Any, self.parser), [data]
        try:
            while left:
                data = left.pop()
                try:
                    parser.feed_data(data)
                except HttpParserUpgrade as stopped:
                    # Of a request that offers another protocol, the parser takes what follows the head for that.
                    if self._last is None:
                        left += data[stopped.args[0] :], self._head_without_upgrade()
        except HttpParserError:
            self.logger.warning("Invalid HTTP request received.")
            self._end_with(400, b"Invalid HTTP request received.", is_whole=True)
        if self._unparsed > _MOST_UNPARSED:
            self._end_with(431, b"a head is too long", is_whole=True)

    def _head_without_upgrade(self) -> bytes:
        parser = cast(Any, self.parser)
        line = b"%s %s HTTP/%s\r\n" % (parser.get_method(), self.url, parser.get_http_version().encode())
        return b"".join([line, *(b"%s: %s\r\n" % each for each in self.headers if each[0] != b"upgrade"), b"\r\n"])

    def on_message_begin(self) -> None:
        # uvicorn's scope is made where an application needs it.
        self.url, self.headers, self._head = b"", [], 0
        self.among.idle.pop(self, None)
        self.among.late.setdefault(self, time.monotonic())

    def on_url(self, url: bytes) -> None:
        self._head += len(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head += len(name) + len(value)
        if self._head > _MOST_UNPARSED or len(self.headers) == _MOST_HEADERS:
            self._end_with(431, b"a head is too long", is_whole=True)
        elif self._last is None:
            self.headers.append((name.lower(), value.strip(b" \t")))

    def on_headers_complete(self) -> None:
        self._unparsed = 0
        if self._last is not None or self.transport.is_closing():
            return
        parser = cast(Any, self.parser)
        if parser.should_upgrade():
            if parser.get_method() == b"CONNECT":
                self._end_with(405, b"CONNECT is not served", is_whole=True)
            return
        is_busy = self._is_busy
        request = Request(
            self.url, self.headers, self.server_state.default_headers, self.transport, self.flow, self._common
        )
        try:
            request.bearer = self.site.admit(request)
            if request.repeats and _repeats(self.headers, _DECISIVE):
                raise NotAdmitted(_problem(400, b"a header that says who asks, or where, is repeated"))
            if len(self.pipeline) == _MOST_AHEAD:
                raise NotAdmitted(_problem(429, b"too many requests were sent ahead"))
            is_direct = not is_busy and self._is_ordinary(request) and self.site.may_answer(request)
        except NotAdmitted as refused:
            self._end(refused.answer)
            return
        except Exception:  # boundary: a defect of the site's ends this connection, and no other
            self.logger.exception("a request's head could not be handled")
            self._end_with(500, b"a defect of this server; its log has more")
            return
        self.among.unadmitted.pop(self, None)
        if is_direct:
            self._direct, self.cycle = request, cast(RequestResponseCycle, request)
        else:
            self.scope = request.scope()
            self.expect_100_continue = request.headers.get(b"expect", b"").lower() == b"100-continue"
            super().on_headers_complete()
            self.scope = self._common
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
            and int(length) <= self.direct_bytes
            and b"expect" not in request.headers
            and parser.should_keep_alive()
            and parser.get_http_version() == "1.1"
        )

    def on_body(self, body: bytes) -> None:
        self._unparsed = 0
        if self._direct is not None:
            self._direct.parts.append(body)
        elif self._last is None and self._is_busy:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._unparsed = 0
        if cast(Any, self.parser).should_upgrade():
            return
        if self._last is not None:
            self._is_whole = True
            self._finish()
            return
        self.among.late.pop(self, None)
        request, self._direct = self._direct, None
        if not self._is_busy:  # its answer came before the end of its body
            self._rest()
        elif request is None:
            super().on_message_complete()
        else:
            request.more_body = False
            task = self.loop.create_task(self._answer(request))
            # uvicorn waits for these when it ends, and cancels them at the end of its time.
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def _answer(self, request: Request) -> None:
        try:
            is_answered = await self.site.answer(request)
        except Exception:  # boundary: a defect of the site's ends this request, and no other
            self.logger.exception("a request could not be answered")
            is_answered = True
            if request.response_started:
                self.transport.close()
            else:
                request.respond(_problem(500, b"a defect of this server; its log has more"))
        except BaseException:  # cancelled
            self.transport.abort()
            raise
        finally:
            request.on_disconnect = None
        if not is_answered:
            await self._pass(request)
            return
        request.parts.clear()
        if self.flow.write_paused:
            await request.room()
        if not request.keep_alive:
            self.transport.close()
        self.on_response_complete()

    async def _pass(self, request: Request) -> None:
        """Let the application answer a request that has arrived whole."""
        cycle = RequestResponseCycle(
            scope=request.direct_scope(),
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
        request.parts.clear()
        if cast(Any, self.cycle) is request:
            self.cycle = cycle
        self._running = cycle
        await cycle.run_asgi(self.app)

    def on_response_complete(self) -> None:
        if self.pipeline:
            self._running = self.pipeline[-1][0]
            super().on_response_complete()
            return
        # Without a timer for each answer, which uvicorn would set, and without the request, which may have a long body.
        self.server_state.total_requests += 1
        self.cycle = self._running = None  # type: ignore[assignment]
        self._ahead = 0
        self._rest()
        if not self.transport.is_closing():
            self.flow.resume_reading()
            if self._last is not None:
                self._finish()

    def _rest(self) -> None:
        """Wait for the next request, or for the end of what is closing."""
        if self in self.connections and self not in self.among.late:
            self.among.idle[self] = time.monotonic()

    def _end_with(self, status: int, problem: bytes, *, is_whole: bool = False) -> None:
        self._end(_problem(status, problem), is_whole=is_whole)

    def _end(self, answer: DirectAnswer, *, is_whole: bool = False) -> None:
        """End the connection with an answer, in its turn, once its request has arrived."""
        self._last = self._last or answer
        self._is_whole |= is_whole
        self._finish()

    def _finish(self) -> None:
        if self._last is None or self.keeps_waiting:
            return
        if not self._is_written:
            self._is_written = True
            # Of a broken body, the answer may have begun.
            if not self._is_busy or not self.cycle.response_started:
                self.transport.write(self._last.encoded([*self.server_state.default_headers, _CLOSE]))
        if self._is_whole:
            self.transport.close()


def _problem(status: int, text: bytes) -> DirectAnswer:
    return DirectAnswer(status, text, b"text/plain")


def _repeats(headers: Headers, names: frozenset[bytes]) -> bool:
    found = [name for name, _ in headers if name in names]
    return len(found) > len(set(found))
