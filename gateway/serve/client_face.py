"""The face to any MCP client: the policy's tools in a world of its own, in both protocol eras."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, cast

import anyio
from pydantic_core import to_json

from gateway.catalogue.names import policy_tools
from gateway.connection.in_flight import RawAnswer
from gateway.errors import GatewayError, WorldLost
from gateway.remote.names import EXTENSION, PROTOCOL, PROTOCOL_META, VERSION
from gateway.serve.answers import failed, succeeded
from gateway.serve.bearers import Bearer, Refused
from gateway.serve.leases import ServedLease, ServedLeases
from gateway.serve.params import InvalidParams, Params
from gateway.types import CallFault, ToolDefinition

if TYPE_CHECKING:
    from gateway.gateway import Gateway

Json = dict[str, Any]

WORLD_META = "mcp-rollout/world"
"""In the `_meta` of results, and of a client's later requests: its world, where the era has no sessions."""
_HANDSHAKES = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
_SERVER_META = "io.modelcontextprotocol/serverInfo"
_INFO = {"name": "mcp-rollout", "version": version("mcp-rollout")}
_EXTENSIONS: Json = {EXTENSION: {"version": VERSION}}
_CACHE: Json = {"ttlMs": 0, "cacheScope": "private"}


class ClientFace:
    """Answers as the members `"result": …` or `"error": …` of a JSON-RPC response, in bytes."""

    def __init__(self, gateway: Gateway, leases: ServedLeases) -> None:
        self._gateway, self._leases = gateway, leases
        self._under_way: dict[tuple[str, object], anyio.CancelScope] = {}
        """Calls by session and request, which a client may cancel."""

    async def answer(
        self, number: object, method: str, params: Json, bearer: Bearer, session: str
    ) -> tuple[bytes | None, str]:
        """The answer, None where the method is unknown; and the session that it begins, empty where it begins none.

        Args:
            session: The request's session id; empty where it has none.
        """
        meta: Json = Params(params).object("_meta")
        if meta.get(PROTOCOL_META) == PROTOCOL or method == "server/discover":
            return await self._modern(number, method, params, bearer, str(meta.get(WORLD_META, ""))), ""
        if method == "initialize":
            lease = self._leases.begin_for_client(bearer)
            return succeeded(self._initialized(Params(params))), lease.handle
        if method == "ping":
            return succeeded({}), ""
        if method not in ("tools/list", "tools/call"):
            return None, ""
        if not session:
            raise Refused(400, "this request needs the Mcp-Session-Id of an initialize")
        lease = self._lease(session, bearer)
        if method == "tools/list":
            return succeeded({"tools": self._tools}), ""
        answer = await self._call(number, Params(params), lease)
        return answer, ""

    async def _modern(self, number: object, method: str, params: Json, bearer: Bearer, world: str) -> bytes | None:
        match method:
            case "server/discover":
                return succeeded(self._discovered)
            case "tools/list":
                return succeeded({"tools": self._tools, "resultType": "complete", **_CACHE})
            case "tools/call":
                lease = self._lease(world, bearer) if world else self._leases.begin_for_client(bearer)
                return await self._call(number, Params(params), lease, modern=True)
            case _:
                return None

    def _lease(self, handle: str, bearer: Bearer) -> ServedLease:
        try:
            return self._leases.find(handle, bearer, is_clients=True)
        except WorldLost as error:
            raise Refused(404, str(error)) from error

    def cancel(self, session: str, params: Json, bearer: Bearer) -> None:
        """Take a client's notification that it has cancelled a request."""
        self._lease(session, bearer)
        if (scope := self._under_way.get((session, params.get("requestId")))) is not None:
            scope.cancel()

    async def close(self, session: str, bearer: Bearer) -> None:
        """End a client's session and its world."""
        self._lease(session, bearer)
        await self._leases.close(session, bearer, is_clients=True)

    async def _call(self, number: object, params: Params, lease: ServedLease, *, modern: bool = False) -> bytes:
        bearer = lease.bearer
        if bearer.calls >= bearer.limits.calls:
            raise Refused(429, f"{bearer.calls} calls are under way already (limits.calls)")
        name, arguments = params.text("name"), params.object("arguments")
        scope = self._under_way[lease.handle, number] = anyio.CancelScope()
        bearer.calls += 1
        lease.requests += 1
        answer = _CANCELLED
        try:
            with scope:
                answer = await self._executed(name, arguments, lease, modern=modern)
        finally:
            bearer.calls -= 1
            lease.requests -= 1
            lease.used()
            self._under_way.pop((lease.handle, number), None)
        return answer

    async def _executed(self, name: str, arguments: Json, lease: ServedLease, *, modern: bool) -> bytes:
        raw = RawAnswer()
        try:
            session = await self._leases.session_of(lease)
            result = await session.call(name, arguments, raw=raw)
        except GatewayError as error:
            return failed(error)
        if result.fault is CallFault.UNKNOWN_TOOL:
            raise InvalidParams(f"Unknown tool: {name}")
        if raw.error:
            return b'"error":' + to_json(raw.error)
        found = raw.result or {"content": [{"type": "text", "text": result.text}], "isError": result.is_error}
        return succeeded(_in_era(found, lease.handle, modern=modern))

    @cached_property
    def _tools(self) -> list[Json]:
        return [_listed(tool) for tool in policy_tools(self._gateway.catalogue)]

    @cached_property
    def _instructions(self) -> Json:
        """The servers' instructions, each under its server's name where there are several."""
        told = {server: text for server, text in self._gateway.instructions.items() if text}
        if not told:
            return {}
        parts = [text if len(told) == 1 else f"# {server}\n{text}" for server, text in told.items()]
        return {"instructions": "\n\n".join(parts)}

    @cached_property
    def _discovered(self) -> Json:
        return {
            "supportedVersions": [PROTOCOL],
            "capabilities": {"tools": {}, "extensions": _EXTENSIONS},
            "serverInfo": _INFO,
            "resultType": "complete",
            "_meta": {_SERVER_META: _INFO},
            **_CACHE,
            **self._instructions,
        }

    def _initialized(self, params: Params) -> Json:
        asked = params.text("protocolVersion")
        return {
            "protocolVersion": asked if asked in _HANDSHAKES else _HANDSHAKES[-1],
            "capabilities": {"tools": {}, "experimental": _EXTENSIONS},
            "serverInfo": _INFO,
            **self._instructions,
        }


def _listed(tool: ToolDefinition) -> Json:
    """A tool in the protocol's form, with its schemas as the server sent them."""
    listed: Json = {"name": tool.exposed_name, "description": tool.description, "inputSchema": tool.input_schema}
    if tool.output_schema is not None:
        listed["outputSchema"] = tool.output_schema
    hints = {"readOnlyHint": tool.read_only, "idempotentHint": tool.idempotent}
    if any(hints.values()):
        listed["annotations"] = {name: True for name, value in hints.items() if value}
    return listed


def _in_era(raw: Mapping[str, Any], handle: str, *, modern: bool) -> Json:
    """A server's result as the client's protocol version has it."""
    result = {name: value for name, value in raw.items() if name not in ("resultType", "_meta")}
    given = cast("Json", raw.get("_meta") or {})
    meta = {name: value for name, value in given.items() if name != _SERVER_META}
    if modern:
        return {**result, "resultType": "complete", "_meta": {**meta, _SERVER_META: _INFO, WORLD_META: handle}}
    return {**result, "_meta": meta} if meta else result


_CANCELLED = b'"error":' + to_json({"code": -32800, "message": "the request was cancelled"})
