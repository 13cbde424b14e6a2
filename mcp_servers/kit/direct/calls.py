"""`DirectCalls`: which `tools/call` requests may skip the SDK's dispatcher, and their results.

The SDK spends most of a call's CPU time before and after the tool: streams, a span, two middlewares, three validations.
An ordinary call needs none of them. This module admits a call only if the SDK would hand its params to the tool's
handler unchanged, runs that same handler, and shapes an ordinary result as the SDK would; the SDK shapes all others.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from importlib.metadata import version as installed_version
from typing import Any, cast

from mcp.server._otel import OpenTelemetryMiddleware
from mcp.server.connection import Connection
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.mcpserver import MCPServer
from mcp.server.request_state import RequestStateBoundary
from mcp.server.runner import ServerRunner
from mcp.server.session import ServerSession
from mcp.shared.dispatcher import DispatchContext
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    LOG_LEVEL_META_KEY,
    PROTOCOL_VERSION_META_KEY,
    SERVER_INFO_META_KEY,
    CallToolRequestParams,
    CallToolResult,
    RequestParamsMeta,
    TextContent,
    methods,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from opentelemetry import trace
from pydantic import ValidationError

KNOWN_SDK = "2.3."
"""The SDK releases whose internals this module knows; with another one, the SDK serves every call."""

_MEMBERS = frozenset({"jsonrpc", "id", "method", "params"})
_PARAMS = frozenset({"name", "arguments", "_meta"})
_ENVELOPE = (PROTOCOL_VERSION_META_KEY, CLIENT_INFO_META_KEY, CLIENT_CAPABILITIES_META_KEY, LOG_LEVEL_META_KEY)
_TRACED = frozenset({"traceparent", "tracestate", "baggage"})
_SHAPED_ALIKE = frozenset({"2025-06-18", "2025-11-25"})
"""Handshake versions whose results have the same fields."""
_RESERVED = "io.modelcontextprotocol/"
_SEEN = 8
"""Number of client envelopes that are remembered as valid."""


class DirectContext(ServerRequestContext[Any, Any]):
    """The SDK's request context, whose session is made when a tool asks for it: most tools never do."""

    open_session: Callable[[], ServerSession]
    find_request: Callable[[], Any]

    @cached_property
    def session(self) -> ServerSession:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.open_session()

    @cached_property
    def request(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.find_request()


class DirectCalls:
    """The direct path of one server's `tools/call`.

    Args:
        server: Its middleware gets one more entry, which observes what the SDK serves: the lifespan's state, and the
            connection, are known once the SDK has served a message.
    """

    def __init__(self, server: MCPServer) -> None:
        self._server = server
        self._lowlevel = server._lowlevel_server  # pyright: ignore[reportPrivateUsage]
        self._lowlevel.middleware.insert(0, self._observe)
        # A list, since capabilities are objects, which have no hash; a few clients share a server.
        self._envelopes: list[tuple[Any, ...]] = []
        self._lifespan_state: Any = None
        self.connection: Connection | None = None
        """The connection of the message that the SDK served last; over stdio in the handshake era, the only one."""

    @classmethod
    def of(cls, server: MCPServer) -> DirectCalls | None:
        """The direct path of `server`, or None if the SDK has to serve all its calls."""
        # With authentication the SDK's application checks a token per request, which the direct path does not.
        if not installed_version("mcp").startswith(KNOWN_SDK) or server.settings.auth is not None:
            return None
        return cls(server)

    def admits(self, params: Any, version: str) -> bool:
        """Whether the direct path gives these params the answer that the SDK gives them.

        Not so with continued rounds, traces, middleware of the server's own, or anything malformed.
        """
        if self.connection is None or type(params) is not dict or not self._is_stock():
            return False
        given = cast("dict[str, Any]", params)
        if not given.keys() <= _PARAMS or type(given.get("name")) is not str:
            return False
        meta = given.get("_meta", {})
        if type(given.get("arguments", {})) is not dict or type(meta) is not dict:
            return False
        return self._has_known_meta(cast("dict[str, Any]", meta), given, version)

    async def answer(
        self,
        params: dict[str, Any],
        version: str,
        connection: Callable[[], Connection],
        channel: DispatchContext[Any],
        find_request: Callable[[], Any] | None = None,
    ) -> dict[str, Any]:
        """The result of an admitted call, as it goes on the wire.

        Args:
            connection: Makes the SDK's view of the client, for a tool that uses its session.
            channel: The way to the client while the call runs.
            find_request: The HTTP request, for a tool that asks for it.

        Raises:
            MCPError: The tool ended the call with a protocol error.
            Exception: As from the SDK's handler; the caller maps it to an error of the protocol.
        """
        entry = self._lowlevel.get_request_handler("tools/call")
        assert entry is not None
        typed = CallToolRequestParams.model_validate(params, by_name=False)
        context = self._context(params, version, typed.meta, connection, channel, find_request)
        result = await entry.handler(context, typed)
        shaped = _ordinary(result, version)
        if shaped is None:
            return await self._shaped_by_sdk(context, version, connection(), result)
        if version in MODERN_PROTOCOL_VERSIONS:
            shaped["_meta"] = {SERVER_INFO_META_KEY: self._server_info}
        return shaped

    @cached_property
    def _server_info(self) -> dict[str, Any]:
        return self._lowlevel.server_info_stamp

    async def _observe(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        self.connection = ctx.session._connection  # pyright: ignore[reportPrivateUsage]
        self._lifespan_state = ctx.lifespan_context
        return await call_next(ctx)

    def _is_stock(self) -> bool:
        """Whether the SDK would do nothing beyond its own: no middleware was added, and nothing records spans."""
        middleware = self._lowlevel.middleware
        return (
            # `_observe` and the SDK's own two; anything added wants to see every call.
            len(middleware) == 3
            and type(middleware[1]) is OpenTelemetryMiddleware
            and type(middleware[2]) is RequestStateBoundary
            and isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider | trace.NoOpTracerProvider)
        )

    def _has_known_meta(self, meta: dict[str, Any], params: dict[str, Any], version: str) -> bool:
        for key in meta:
            if key in _TRACED or (key.startswith(_RESERVED) and key not in _ENVELOPE):
                return False
        # By type: true is an integer to `isinstance`, and the SDK's to judge.
        if type(meta.get("progressToken", 0)) not in (int, str):
            return False
        envelope = (version, *(meta.get(key) for key in _ENVELOPE))
        if envelope in self._envelopes:
            return True
        # A client repeats its envelope with each request: the schema of the version is applied to the first one.
        try:
            methods.validate_client_request("tools/call", version, params)
        except (ValidationError, KeyError):
            return False
        self._envelopes = [*self._envelopes[1 - _SEEN :], envelope]
        return True

    def _context(
        self,
        params: dict[str, Any],
        version: str,
        meta: RequestParamsMeta | None,
        connection: Callable[[], Connection],
        channel: DispatchContext[Any],
        find_request: Callable[[], Any] | None,
    ) -> DirectContext:
        context = DirectContext.__new__(DirectContext)  # its `__init__` would want a session
        context.lifespan_context = self._lifespan_state
        context.protocol_version = version
        context.method, context.params, context.meta = "tools/call", params, meta
        context.request_id = channel.request_id
        context.close_sse_stream = context.close_standalone_sse_stream = None
        context.open_session = lambda: ServerSession(channel, connection(), request_meta=meta)
        context.find_request = find_request or (lambda: None)
        return context

    async def _shaped_by_sdk(
        self, context: DirectContext, version: str, connection: Connection, result: HandlerResult
    ) -> dict[str, Any]:
        """Any result as the SDK shapes it, with its middleware: a question to the client has its state sealed."""
        runner = ServerRunner(self._lowlevel, connection, self._lifespan_state)

        async def shape(_: ServerRequestContext[Any, Any]) -> HandlerResult:
            return runner._serialize("tools/call", version, result)  # pyright: ignore[reportPrivateUsage]

        return cast("dict[str, Any]", await runner._compose_server_middleware(shape)(context))  # pyright: ignore[reportPrivateUsage]


def as_call(message: Any) -> dict[str, Any] | None:
    """A decoded JSON-RPC message if it is a well-formed `tools/call` request without further members, or None."""
    if type(message) is not dict:
        return None
    request = cast("dict[str, Any]", message)
    if request.keys() != _MEMBERS or request["method"] != "tools/call" or request["jsonrpc"] != "2.0":
        return None
    return request if type(request["id"]) in (int, str) else None


def _ordinary(result: HandlerResult, version: str) -> dict[str, Any] | None:
    """The wire form of a result of plain texts and plain structured content; None for any other."""
    if type(result) is not CallToolResult or result.meta is not None or result.result_type != "complete":
        return None
    content: list[dict[str, Any]] = []
    for block in result.content:
        if type(block) is not TextContent or block.annotations is not None or block.meta is not None:
            return None
        content.append({"text": block.text, "type": "text"})
    # The order of the keys is the SDK's, so that the answers are equal byte for byte.
    shaped: dict[str, Any] = {"content": content, "isError": result.is_error}
    if version in MODERN_PROTOCOL_VERSIONS:
        shaped["resultType"] = "complete"
    elif version not in _SHAPED_ALIKE:
        return None
    structured = result.structured_content
    if structured is not None:
        if type(structured) is not dict or not _is_plain(structured):
            return None
        shaped["structuredContent"] = structured
    return shaped


def _is_plain(value: Any) -> bool:
    """Whether `value` is made of JSON's own types, so that no serializer has to convert a part of it."""
    kind = cast(Any, type(value))
    if kind is dict:
        return all(type(key) is str and _is_plain(item) for key, item in cast("dict[Any, Any]", value).items())
    if kind is list:
        return all(_is_plain(item) for item in cast("list[Any]", value))
    return kind in (str, int, float, bool, type(None))
