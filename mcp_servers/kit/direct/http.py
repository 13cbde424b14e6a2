"""Serving streamable HTTP with the direct path in front of the SDK's application.

Direct calls, which are POSTs of the 2026-07-28 protocol, are answered without ASGI. The SDK's application has any other
request; requests in the handshake era are among them, since what a tool sends may travel on other streams of the
client's session.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import MutableMapping
from typing import Any

import pydantic_core
import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp.server.streamable_http import check_accept_headers
from mcp.server.transport_security import DEFAULT_MAX_REQUEST_BODY_SIZE, TransportSecurityMiddleware
from mcp.shared.inbound import decode_header_value, x_mcp_header_map
from mcp_types import CLIENT_CAPABILITIES_META_KEY, PROTOCOL_VERSION_META_KEY
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.requests import Request as AsgiRequest

from mcp_rollout.mcp_servers.kit import sdk
from mcp_rollout.mcp_servers.kit.direct.calls import DirectCalls, as_call
from mcp_rollout.mcp_servers.kit.direct.exchange import PING_S, Exchange
from mcp_rollout.mcp_wire.admission import NEEDS_TOKEN, SHORTEST_TOKEN, Holders, Names, is_loopback
from mcp_rollout.mcp_wire.http_connections import Connections
from mcp_rollout.mcp_wire.http_request import DirectAnswer, NotAdmitted, Request
from mcp_rollout.mcp_wire.http_server import protocol

PATH = b"/mcp"
RECEIVE_S = 30.0
"""How long a request may take to arrive whole, and the first one of a connection to begin."""
MOST_UNADMITTED = 4096
"""Connections without a request that was admitted; beyond it, the oldest is closed."""
STOP_S = 30
"""How long calls may go on after a signal to end, and clients may read their answers."""
_SWEEP_S = 1.0
_CHECKED = (b"host", b"origin", b"content-type", b"accept")
_ACCEPTED = 256
"""Number of header combinations whose acceptance is remembered."""


class DirectSite:
    """What the connections of one server answer directly."""

    def __init__(self, server: MCPServer, calls: DirectCalls | None, admission: Admission) -> None:
        self._calls, self._server = calls, server
        self.admit = admission.admit
        self._security = TransportSecurityMiddleware(server.session_manager.security_settings)
        self._accepted: dict[tuple[bytes, ...], bool] = {}
        self._mirrored: dict[str, tuple[Any, bool]] = {}
        self._silent: dict[Exchange, float] = {}
        """Calls under way by their last sign of life, the oldest first."""

    def may_answer(self, request: Request) -> bool:
        headers = request.headers
        return (
            self._calls is not None
            and request.target == PATH
            and not request.repeats
            and headers.get(b"mcp-method") == b"tools/call"
            and headers.get(b"mcp-protocol-version", b"").decode("latin-1") in MODERN_PROTOCOL_VERSIONS
        )

    async def answer(self, request: Request) -> bool:
        message = await self._call_of(request)
        if message is None:
            return False
        exchange = Exchange(request, message)
        self._silent[exchange] = time.monotonic()
        try:
            assert self._calls is not None
            await exchange.run(self._calls)
        finally:
            self._silent.pop(exchange, None)
        return True

    async def _call_of(self, request: Request) -> dict[str, Any] | None:
        """The message of a request that the SDK would hand to a tool unchanged; None for any other."""
        if not await self._accepts(request.headers):
            return None
        try:
            message = as_call(pydantic_core.from_json(request.body))
        except ValueError:  # or JSON that only Python's parser reads, such as a lone surrogate
            return None
        if message is None:
            return None
        params = message["params"]
        version = request.headers[b"mcp-protocol-version"].decode("latin-1")
        if self._calls is None or not self._calls.admits(params, version):
            return None
        meta = params.get("_meta")
        if meta is None or meta.get(PROTOCOL_VERSION_META_KEY) != version or CLIENT_CAPABILITIES_META_KEY not in meta:
            return None
        name = params["name"]
        named = decode_header_value(request.headers.get(b"mcp-name", b"").decode("latin-1"))
        return None if named != name or self._is_mirrored(name) else message

    async def _accepts(self, headers: dict[bytes, bytes]) -> bool:
        """Whether the SDK's checks of host, origin, content type and accepted answers pass; remembered by value."""
        key = tuple([headers.get(name, b"\0") for name in _CHECKED])
        if (known := self._accepted.get(key)) is not None:
            return known
        request = AsgiRequest({"type": "http", "method": "POST", "headers": list(headers.items())})
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

    async def ping_silent(self) -> None:
        """Ping the clients of calls that are silent, until cancelled."""
        while True:
            await asyncio.sleep(_SWEEP_S)
            now = time.monotonic()
            for exchange, since in list(self._silent.items()):
                if now - since < PING_S:
                    break
                del self._silent[exchange]
                self._silent[exchange] = now
                exchange.ping()


async def serve_http(server: MCPServer, calls: DirectCalls | None, admission: Admission, host: str, port: int) -> None:
    """Serves at `/mcp` until the process receives a signal.

    Args:
        calls: None if the SDK has to serve all calls.
    """
    app = server.streamable_http_app(host=host)
    site = DirectSite(server, calls, admission)
    among = Connections(receive_s=RECEIVE_S, unadmitted=MOST_UNADMITTED)
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        log_level=server.settings.log_level.lower(),
        http=protocol(site, among, direct_bytes=DEFAULT_MAX_REQUEST_BODY_SIZE),
        ws="none",
        timeout_graceful_shutdown=STOP_S,
    )
    sweeping = [asyncio.create_task(each) for each in (among.sweep(), site.ping_silent())]
    try:
        await uvicorn.Server(config).serve()
    finally:
        for each in sweeping:
            each.cancel()


TOKEN, HOSTS = "MCP_SERVER_TOKEN", "MCP_SERVER_HOSTS"
"""Variables of the environment: the bearer token, and further names by which clients may address the server. Either may
have several values with spaces between them."""


class Admission:
    """Admits requests to a server that listens at `host`.

    Args:
        variables: Of the environment. The token is removed from them: programs that the server starts do not need it.
        authorizes: Whether the server has an authorization of its own.

    Raises:
        ValueError: other machines reach the address, and there is no token; or the token is too short.
    """

    def __init__(self, host: str, variables: MutableMapping[str, str], *, authorizes: bool = False) -> None:
        tokens = variables.pop(TOKEN, "").split()
        if not tokens and not is_loopback(host) and not authorizes:
            raise ValueError(
                f"{host} is reachable from other machines: {TOKEN} must hold a token (openssl rand -hex 32)"
            )
        if any(len(token) < SHORTEST_TOKEN for token in tokens):
            raise ValueError(f"{TOKEN}: shorter than {SHORTEST_TOKEN} characters (openssl rand -hex 32)")
        self._holders = Holders(dict.fromkeys(tokens, True))
        self._names = Names(host, variables.get(HOSTS, "").split())

    def admit(self, request: Request) -> bool:
        """As `Site.admit`: all tokens have the same rights."""
        headers = request.headers
        if not self._names.has(headers.get(b"host", b"")):
            raise _refusal(421, "Invalid Host header")
        if b"origin" in headers and not self._names.has_origin(headers[b"origin"]):
            raise _refusal(403, "Invalid Origin header")
        if self._holders and not self._holders.of(headers):
            raise _refusal(401, NEEDS_TOKEN)
        return True


def _refusal(status: int, problem: str) -> NotAdmitted:
    return NotAdmitted(DirectAnswer(status, problem.encode(), b"text/plain"))
