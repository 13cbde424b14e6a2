"""`DirectCalls`: which `tools/call` requests may skip the SDK's dispatcher, and their results.

The SDK spends most of a call's CPU time before and after the tool: streams, a span, two middlewares, three validations.
An ordinary call needs none of them. This module admits a call only if the SDK would hand its params to the tool's
handler unchanged, runs the tool as that handler does (`DirectTools`), and shapes an ordinary result as the SDK would;
the SDK shapes all others.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, cast

from mcp.server.connection import Connection
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import MCPServer
from mcp.server.request_state import RequestStateBoundary
from mcp.server.runner import ServerRunner
from mcp.server.session import ServerSession
from mcp.shared.dispatcher import DispatchContext
from mcp.shared.exceptions import MCPError
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

from mcp_rollout.mcp_servers.kit import sdk
from mcp_rollout.mcp_servers.kit.direct.tools import DirectTools, OrdinaryResult, handing_over, is_plain

_MEMBERS = frozenset({"jsonrpc", "id", "method", "params"})
_PARAMS = frozenset({"name", "arguments", "_meta"})
_ENVELOPE = (PROTOCOL_VERSION_META_KEY, CLIENT_INFO_META_KEY, CLIENT_CAPABILITIES_META_KEY, LOG_LEVEL_META_KEY)
_TRACED = frozenset({"traceparent", "tracestate", "baggage"})
_SHAPED_ALIKE = frozenset({"2025-06-18", "2025-11-25"})
"""Handshake versions whose results have the same fields."""
_RESERVED = "io.modelcontextprotocol/"
_WITHOUT_SPANS = (trace.ProxyTracerProvider, trace.NoOpTracerProvider)
"""Providers that record nothing."""
_STOCK = [*(type(each) for each in Server("stock").middleware), RequestStateBoundary]
"""The SDK's own middleware around each message."""
_SEEN = 8
"""Number of client envelopes that are remembered as valid."""


class DirectContext(ServerRequestContext[Any, Any]):
    """The SDK's request context, whose session is made when a tool asks for it: most tools never do."""

    def __init__(
        self,
        params: dict[str, Any],
        version: str,
        lifespan_state: Any,
        channel: DispatchContext[Any],
        connection: Callable[[], Connection],
        find_request: Callable[[], Any] | None,
    ) -> None:
        self.method, self.params, self.meta = "tools/call", params, _request_meta(params)
        self.protocol_version, self.lifespan_context, self.request_id = version, lifespan_state, channel.request_id
        self.close_sse_stream = self.close_standalone_sse_stream = None
        self._channel, self._open_connection, self._find_request = channel, connection, find_request

    @cached_property
    def session(self) -> ServerSession:  # pyright: ignore[reportIncompatibleVariableOverride]
        return ServerSession(self._channel, self._open_connection(), request_meta=self.meta)

    @cached_property
    def request(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        return None if self._find_request is None else self._find_request()


class DirectCalls:
    """The direct path of one server's `tools/call`.

    Args:
        server: Its middleware gets one more entry, which observes what the SDK serves: the lifespan's state, and the
            connection, are known once the SDK has served a message.
    """

    def __init__(self, server: MCPServer) -> None:
        self._tools = DirectTools(server)
        self._lowlevel = sdk.lowlevel_of(server)
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
        if server.settings.auth is not None:
            return None
        if not sdk.is_known:
            sdk.warn_of_unknown()
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
        context = DirectContext(params, version, self._lifespan_state, channel, connection, find_request)
        modern = version in MODERN_PROTOCOL_VERSIONS
        has_known_form = modern or version in _SHAPED_ALIKE
        tool = self._tools.get(params["name"], self._handler) if has_known_form else None
        if tool is None:
            result = await self._handler(context, _typed(params))
        else:
            try:
                arguments: dict[str, Any] = params.get("arguments") or {}
                result = await tool.run(arguments, self._tools.context(tool, context), convert_result=True)
            except MCPError:
                raise
            except Exception as failure:  # the boundary of a tool: what it raises is its answer
                with handing_over(failure):
                    result = await self._handler(context, _typed(params))
        shaped = _ordinary(result, modern=modern) if has_known_form else None
        if shaped is None:
            return await self._shaped_by_sdk(params, connection(), channel, result)
        if modern:
            shaped["_meta"] = {SERVER_INFO_META_KEY: self._server_info}
        return shaped

    @property
    def _handler(self) -> Any:
        entry = self._lowlevel.get_request_handler("tools/call")
        return entry.handler if entry is not None else None

    @cached_property
    def _server_info(self) -> dict[str, Any]:
        return self._lowlevel.server_info_stamp

    async def _observe(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        self.connection = sdk.connection_of(ctx)
        self._lifespan_state = ctx.lifespan_context
        return await call_next(ctx)

    def _is_stock(self) -> bool:
        """Whether the SDK would do nothing beyond its own: no middleware was added, and nothing records spans."""
        middleware = self._lowlevel.middleware
        return (
            # After `_observe`; anything added wants to see every call.
            [type(each) for each in middleware[1:]] == _STOCK
            and self._tools.takes(self._handler)
            and type(trace.get_tracer_provider()) in _WITHOUT_SPANS
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

    async def _shaped_by_sdk(
        self, params: dict[str, Any], connection: Connection, channel: DispatchContext[Any], result: HandlerResult
    ) -> dict[str, Any]:
        """Any result as the SDK shapes it, with its middleware: a question to the client has its state sealed."""
        runner = ServerRunner(self._lowlevel, connection, self._lifespan_state)
        with handing_over(result):
            return await runner.on_request(channel, "tools/call", params)


def as_call(message: Any) -> dict[str, Any] | None:
    """A decoded JSON-RPC message if it is a well-formed `tools/call` request without further members, or None."""
    if type(message) is not dict:
        return None
    request = cast("dict[str, Any]", message)
    if request.keys() != _MEMBERS or request["method"] != "tools/call" or request["jsonrpc"] != "2.0":
        return None
    return request if type(request["id"]) in (int, str) else None


def _typed(params: dict[str, Any]) -> CallToolRequestParams:
    return CallToolRequestParams.model_validate(params, by_name=False)


def _request_meta(params: dict[str, Any]) -> RequestParamsMeta | None:
    """`_meta` as the SDK has it, of admitted params."""
    meta: Any = params.get("_meta")
    if meta is None or "progress_token" in meta:
        return _typed(params).meta
    meta = {**meta}
    if "progressToken" in meta:
        meta["progress_token"] = meta.pop("progressToken")
    return meta


def _ordinary(result: HandlerResult | OrdinaryResult, *, modern: bool) -> dict[str, Any] | None:
    """The wire form of a result of plain texts and plain structured content; None for any other."""
    if type(result) is OrdinaryResult:
        content, structured, is_error = result.content, result.structured, False
    elif type(result) is CallToolResult and result.meta is None and result.result_type == "complete":
        content, structured, is_error = list[dict[str, Any]](), result.structured_content, result.is_error
        for block in result.content:
            if type(block) is not TextContent or block.annotations is not None or block.meta is not None:
                return None
            content.append({"text": block.text, "type": "text"})
        if structured is not None and (type(structured) is not dict or not is_plain(structured)):
            return None
    else:
        return None
    # The order of the keys is the SDK's, so that the answers are equal byte for byte.
    shaped: dict[str, Any] = {"content": content, "isError": is_error}
    if modern:
        shaped["resultType"] = "complete"
    if structured is not None:
        shaped["structuredContent"] = structured
    return shaped
