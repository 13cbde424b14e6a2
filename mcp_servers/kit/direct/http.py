"""Serving streamable HTTP with the direct path in front of the SDK's application.

Each connection reads requests itself and answers direct calls, which are POSTs of the 2026-07-28 protocol,
without ASGI. Any other request is passed to the SDK's HTTP server, byte for byte; requests in the handshake era are
among them, since what a tool sends may travel on other streams of the client's session.
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from typing import Any

import pydantic_core
import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp.server.streamable_http import check_accept_headers
from mcp.server.transport_security import DEFAULT_MAX_REQUEST_BODY_SIZE, TransportSecurityMiddleware
from mcp.shared.inbound import decode_header_value, x_mcp_header_map
from mcp_types import CLIENT_CAPABILITIES_META_KEY, PROTOCOL_VERSION_META_KEY
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.requests import Request
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol
from uvicorn.server import ServerState

from mcp_servers.kit import sdk
from mcp_servers.kit.direct.calls import DirectCalls, as_call
from mcp_servers.kit.direct.door import ADMITTED, Door, headers_of
from mcp_servers.kit.direct.exchange import PING_S, Exchange
from mcp_servers.kit.direct.http_head import HEAD_BYTES, Head, ends_otherwise, read_head

PATH = b"/mcp"
KEEP_ALIVE_S = 75.0
"""How long an idle connection is kept: longer than clients keep one, so that they do not send into a closing one."""
RECEIVE_S = 30.0
"""How long a request may take to arrive whole, and the first one of a connection to begin."""
MOST_UNADMITTED = 4096
"""Connections without a request that was admitted; beyond it, the oldest is closed."""
_SWEEP_S = 1.0
_CHECKED = (b"host", b"origin", b"content-type", b"accept")
_ACCEPTED = 256
"""Number of header combinations whose acceptance is remembered."""

log = logging.getLogger(__name__)


class HttpServer:
    """What the connections of one server share."""

    def __init__(self, server: MCPServer, calls: DirectCalls | None, door: Door) -> None:
        self.calls, self.door, self._server = calls, door, server
        self._security = TransportSecurityMiddleware(server.session_manager.security_settings)
        self._accepted: dict[tuple[bytes, ...], bool] = {}
        self._mirrored: dict[str, tuple[Any, bool]] = {}
        # In order of time, so that a sweep looks at the oldest entries only.
        self.idle: dict[HttpConnection, float] = {}
        self.late: dict[HttpConnection, float] = {}
        """Connections with a part of a request, by when it began to arrive."""
        self.unadmitted: dict[HttpConnection, None] = {}
        self.silent: dict[Exchange, float] = {}

    async def admitted(self, head: Head, body: bytes) -> dict[str, Any] | None:
        """The message of a request that `may_admit` left open; None if it is the SDK's to answer after all."""
        if not await self._accepts(head):
            return None
        try:
            message = as_call(pydantic_core.from_json(body))
        except ValueError:  # or JSON that only Python's parser reads, such as a lone surrogate
            return None
        if message is None:
            return None
        params = message["params"]
        version = head.headers[b"mcp-protocol-version"].decode("latin-1")
        if self.calls is None or not self.calls.admits(params, version):
            return None
        meta = params.get("_meta")
        if meta is None or meta.get(PROTOCOL_VERSION_META_KEY) != version or CLIENT_CAPABILITIES_META_KEY not in meta:
            return None
        name = params["name"]
        if decode_header_value(head.headers.get(b"mcp-name", b"").decode("latin-1")) != name or self._is_mirrored(name):
            return None
        return message

    def may_admit(self, head: Head) -> bool:
        """Whether the head alone leaves the direct path open."""
        headers = head.headers
        return (
            self.calls is not None
            and head.method == b"POST"
            and head.target == PATH
            and not head.repeated
            and headers.get(b"mcp-method") == b"tools/call"
            and headers.get(b"mcp-protocol-version", b"").decode("latin-1") in MODERN_PROTOCOL_VERSIONS
        )

    async def _accepts(self, head: Head) -> bool:
        """Whether the SDK's checks of host, origin, content type and accepted answers pass; remembered by value."""
        key = tuple(head.headers.get(name, b"\0") for name in _CHECKED)
        if (known := self._accepted.get(key)) is not None:
            return known
        request = Request({"type": "http", "method": "POST", "headers": list(head.headers.items())})
        refused = await self._security.validate_request(request, is_post=True)
        if len(self._accepted) >= _ACCEPTED:
            self._accepted.clear()
        self._accepted[key] = refused is None and check_accept_headers(request) == (True, True)
        return self._accepted[key]

    def _is_mirrored(self, name: str) -> bool:
        """Whether arguments of the tool are mirrored in `Mcp-Param-*` headers, which the SDK compares."""
        tool = sdk.tools_of(self._server).get_tool(name)
        if tool is None:
            return False
        schema, mirrored = self._mirrored.get(name, (None, False))
        if schema is not tool.parameters:
            mirrored = bool(x_mcp_header_map(tool.parameters))
            self._mirrored[name] = (tool.parameters, mirrored)
        return mirrored

    async def sweep(self) -> None:
        """Closes connections that were idle or late for too long, and pings the clients of calls that are silent."""
        while True:
            await asyncio.sleep(_SWEEP_S)
            now = time.monotonic()
            for connection, since in list(self.late.items()):
                if now - since < RECEIVE_S:
                    break
                connection.transport.abort()
            for connection, since in list(self.idle.items()):
                if now - since < KEEP_ALIVE_S:
                    break
                connection.close()
            for exchange, since in list(self.silent.items()):
                if now - since < PING_S:
                    break
                del self.silent[exchange]
                self.silent[exchange] = now
                exchange.ping()


class HttpConnection(asyncio.Protocol):
    """One connection: its requests one after the other, each answered here or by the SDK's HTTP server."""

    def __init__(
        self, server: HttpServer, config: uvicorn.Config, state: ServerState, app_state: dict[str, Any]
    ) -> None:
        self._server, self._config, self._state, self._app_state = server, config, state, app_state
        self._buffer = bytearray()
        self._head: Head | None = None
        self._start = 0
        """Where the body begins in the buffer, once the head is read."""
        self._sdk: SdkConnection | None = None
        self._exchange: Exchange | None = None
        self._busy = self._ending = False
        self._is_sdks = False
        """The SDK's HTTP server answers the request in progress."""
        self.is_handed_over = False
        """The SDK's HTTP server reads this connection from now on."""
        self._ignored = 0
        """Bytes of a refused request's body that its client may still send: closed before, it might miss the answer."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._state.connections.add(self)  # pyright: ignore[reportArgumentType]
        server = self._server
        server.idle[self] = server.late[self] = time.monotonic()
        server.unadmitted[self] = None
        if len(server.unadmitted) > MOST_UNADMITTED:
            oldest = next(iter(server.unadmitted))
            del server.unadmitted[oldest]
            oldest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._state.connections.discard(self)  # pyright: ignore[reportArgumentType]
        self._server.idle.pop(self, None)
        self._server.late.pop(self, None)
        self._server.unadmitted.pop(self, None)
        if self._exchange is not None:
            self._exchange.disconnected()
        if self._sdk is not None:
            self._sdk.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.is_handed_over:
            self._hand_on(data)
            return
        if self._ignored:
            self._ignored -= min(self._ignored, len(data))
            if not self._ignored:
                self.close()
            return
        self._buffer += data
        if not self._busy:
            self._next()
        elif len(self._buffer) > HEAD_BYTES + DEFAULT_MAX_REQUEST_BODY_SIZE:
            self.transport.pause_reading()  # requests sent ahead of their answers

    def pause_writing(self) -> None:
        if self._exchange is not None:
            self._exchange.room.clear()
        if self._sdk is not None:
            self._sdk.pause_writing()

    def resume_writing(self) -> None:
        if self._exchange is not None:
            self._exchange.room.set()
        if self._sdk is not None:
            self._sdk.resume_writing()

    def shutdown(self) -> None:
        """uvicorn's call when the server ends: the request in progress is answered first."""
        self._ending = True
        if self._sdk is not None and self._is_sdks:
            self._sdk.shutdown()
        elif not self._busy:
            self.close()

    def close(self) -> None:
        self._server.idle.pop(self, None)
        self.transport.close()

    def done(self) -> None:
        """The request in progress is answered."""
        # Requests sent ahead wait in the buffer, so that answers keep their order (RFC 9112, section 9.3.2).
        self._busy, self._is_sdks, self._exchange = False, False, None
        if self._ending or self.transport.is_closing():
            self.close()
            return
        self._server.idle[self] = time.monotonic()
        self.transport.resume_reading()
        if self._buffer:
            self._next()

    def _next(self) -> None:
        """Begins the next request if all of it has arrived."""
        self._server.late.setdefault(self, time.monotonic())
        if self._head is None:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0 and len(self._buffer) <= HEAD_BYTES and not ends_otherwise(self._buffer):
                return
            self._head = read_head(bytes(self._buffer[:end])) if 0 <= end <= HEAD_BYTES else None
            if self._head is None or self._head.length > DEFAULT_MAX_REQUEST_BODY_SIZE:
                self._hand_over()
                return
            self._start = end + 4
            # Before any of the body is kept.
            if (refused := self._server.door.refusal(self._head.headers)) is not None:
                self._refuse(refused, self._start + self._head.length)
                return
            self._server.unadmitted.pop(self, None)
        stop = self._start + self._head.length
        if len(self._buffer) < stop:
            return
        head, whole = self._head, bytes(self._buffer[:stop])
        del self._buffer[:stop]
        self._head = None
        # From here on the sweep must not close the connection: a request is in progress.
        self._server.idle.pop(self, None)
        self._server.late.pop(self, None)
        if self._server.may_admit(head):
            self._busy = True
            task = asyncio.get_running_loop().create_task(self._serve(head, whole))
            self._state.tasks.add(task)
            task.add_done_callback(self._state.tasks.discard)
        else:
            self._pass(whole)

    async def _serve(self, head: Head, whole: bytes) -> None:
        message = await self._server.admitted(head, whole[len(whole) - head.length :])
        if message is None:
            self._pass(whole)
            return
        self._exchange = Exchange(self.transport, self._state.default_headers, head, message)
        self._server.silent[self._exchange] = time.monotonic()
        try:
            assert self._server.calls is not None
            await self._exchange.run(self._server.calls)
        finally:
            self._server.silent.pop(self._exchange, None)
            self.done()

    def _pass(self, whole: bytes) -> None:
        """Gives one request to the SDK's HTTP server, which says when it is answered."""
        self._busy = self._is_sdks = True
        self._sdk_connection().data_received(whole)

    def _refuse(self, refused: tuple[int, bytes], stop: int) -> None:
        lines = b"".join(b"%s: %s\r\n" % header for header in headers_of(refused))
        status, text = refused
        self.transport.write(b"HTTP/1.1 %d %s\r\n%s\r\n%s" % (status, STATUS_PHRASES[status], lines, text))
        self._ignored = stop - min(len(self._buffer), stop)
        self._buffer.clear()
        if not self._ignored:
            self.close()

    def _hand_over(self) -> None:
        """Gives this and all further bytes to the SDK's HTTP server."""
        self.is_handed_over = self._is_sdks = True
        self._server.idle.pop(self, None)
        data = bytes(self._buffer)
        self._buffer.clear()
        self._hand_on(data)

    def _hand_on(self, data: bytes) -> None:
        self._sdk_connection().data_received(data)
        self.note_arrival()

    def note_arrival(self) -> None:
        """Note whether the SDK's HTTP server, which reads the connection, waits for the rest of a request."""
        assert self._sdk is not None
        # Compared by name: h11 is not among the packages that a server may import.
        if repr(self._sdk.conn.their_state) in ("IDLE", "SEND_BODY"):
            self._server.late.setdefault(self, time.monotonic())
        else:
            self._server.late.pop(self, None)

    def _sdk_connection(self) -> SdkConnection:
        if self._sdk is None:
            app_state = {**self._app_state, ADMITTED: partial(self._server.unadmitted.pop, self, None)}
            self._sdk = SdkConnection(self._config, self._state, app_state)
            self._sdk.owner = self
            self._sdk.connection_made(self.transport)
        return self._sdk


class SdkConnection(H11Protocol):
    """uvicorn's connection, which serves the SDK's application; it has the owner's transport."""

    owner: HttpConnection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.connections.discard(self)  # the owner is the one that uvicorn shuts down

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.owner.is_handed_over:
            self.owner.note_arrival()
        else:
            self._unset_keepalive_if_required()  # the owner closes idle connections
            self.owner.done()


async def serve_http(server: MCPServer, calls: DirectCalls | None, door: Door, host: str, port: int) -> None:
    """Serves at `/mcp` until the process receives a signal.

    Args:
        calls: None if the SDK has to serve all calls.
    """
    app = door.guarding(server.streamable_http_app(host=host))
    http = HttpServer(server, calls, door)

    class Connection(HttpConnection):
        def __init__(
            self, config: uvicorn.Config, server_state: ServerState, app_state: dict[str, Any], **_: Any
        ) -> None:
            super().__init__(http, config, server_state, app_state)

    level = server.settings.log_level.lower()
    config = uvicorn.Config(app, host=host, port=port, log_level=level, http=Connection, ws="none")
    sweeping = asyncio.get_running_loop().create_task(http.sweep())
    try:
        await uvicorn.Server(config).serve()
    finally:
        sweeping.cancel()
