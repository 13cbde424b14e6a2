"""One request of an MCP client within its world: the tool or server it means, and the result as its era has it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any, cast

from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp_types import INVALID_PARAMS, INVALID_REQUEST, LOG_LEVEL_META_KEY, METHOD_NOT_FOUND, SERVER_INFO_META_KEY

from mcp_rollout.gateway.connection.relay import ErrorAnswer, ForwardedRequest, Json, Relay, without_own
from mcp_rollout.gateway.errors import GatewayError
from mcp_rollout.gateway.leases.session import Session
from mcp_rollout.gateway.remote.outcome import encoded_failure, encoded_result
from mcp_rollout.gateway.serve.client_gateways import ClientGateway
from mcp_rollout.gateway.server_events import ServerEvents

_INFO: Json = {"name": "mcp-rollout", "version": version("mcp-rollout")}
_MODERN_ONLY = frozenset(("resultType", "ttlMs", "cacheScope"))
CACHE: Json = {"ttlMs": 0, "cacheScope": "private"}
"""What results of `_CACHED` have in 2026-07-28, and those of servers of the other era have not."""
_CACHED = frozenset(("resources/list", "resources/templates/list", "resources/read", "prompts/list"))


def error_of(error: ErrorAnswer | GatewayError) -> Json:
    """The JSON-RPC error for a client: a server's own as it is, else what broke."""
    return error.error if isinstance(error, ErrorAnswer) else encoded_failure(error)


class WorldRequest(Relay):
    """A request within a world. As a `Relay` it bounds what the servers ask meanwhile.

    Args:
        relay: The way back to the client.
        meta: The client's `_meta`.
    """

    def __init__(self, client: ClientGateway, session: Session, relay: Relay, method: str, meta: Json) -> None:
        self._client, self._session, self._relay = client, session, relay
        self._method, self._meta, self._asked = method, meta, 0

    def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """As `Relay.notify`."""
        self._relay.notify(method, params)

    async def request(self, method: str, params: Json) -> Json:
        """As `Relay.request`."""
        # Refused ones count: a server that asks in a loop must be stopped.
        self._asked += 1
        if self._asked > (most := self._client.gateway.config.max_requests_per_call):
            problem = f"a call may make {most} requests (max_requests_per_call)"
            raise ErrorAnswer({"code": INVALID_REQUEST, "message": problem})
        return await self._relay.request(method, params)

    async def result(self, params: Json) -> Json:
        """The servers' result.

        Args:
            params: Without `_meta`.

        Raises:
            ErrorAnswer, GatewayError: for `error_of`.
        """
        if self._method == "tools/call":
            return await self._call(params)
        if (server := self._client.whole) is None:
            raise ErrorAnswer({"code": METHOD_NOT_FOUND, "message": "only tools are served here"})
        # Whatever it declared: the server's own error is a better answer than one of ours.
        result = await self._send(server, params)
        return {**CACHE, **result} if self._method in _CACHED and not _asks(result) else result

    async def _call(self, params: Json) -> Json:
        name: Any = params.get("name")
        arguments: Any = params.get("arguments") or {}
        tool = self._session.tools.get(name) if isinstance(name, str) else None
        if tool is None:  # as the SDK's servers answer; a harness tool's name is unknown like any other
            return {"content": [{"type": "text", "text": f"Unknown tool: {name}"}], "isError": True}
        if not isinstance(arguments, dict):
            raise ErrorAnswer({"code": INVALID_PARAMS, "message": "arguments must be an object"})
        given = cast("Json", arguments)
        if not self._client.relays:
            result = await self._session.call(tool.exposed_name, given)
            # Without rewards and states: these are for the trainer whose lease it is.
            return without_own(encoded_result(result, ServerEvents()))
        prepared = self._session.prepared(tool, given)
        if prepared.faults:
            return {"content": [{"type": "text", "text": prepared.refusal(tool.exposed_name)}], "isError": True}
        return await self._send(tool.server, {**params, "name": tool.name, "arguments": prepared.arguments})

    async def _send(self, server: str, params: Json) -> Json:
        # A subscription is answered when it ends; its client ends it by closing the stream.
        bounded = self._method != "subscriptions/listen"
        return await self._session.sending.forward(
            server,
            ForwardedRequest(
                method=self._method,
                params=params,
                # The token would collide with other clients': the connection gives one of its own.
                meta={name: value for name, value in self._meta.items() if name != "progressToken"},
                without=frozenset((LOG_LEVEL_META_KEY,)),
                timeout_s=self._session.call_timeout_s(server) if bounded else math.inf,
                relay=self,
                wants_progress="progressToken" in self._meta,
            ),
        )


def _asks(result: Json) -> bool:
    return result.get("resultType") == "input_required"


def modern_result(result: Json, request: object) -> Json:
    """A server's result for a client of 2026-07-28: with its type, and this server's identity in place of its own.

    Args:
        request: The client's id of the request, by which it knows a subscription.
    """
    meta = {**cast("Json", result.get("_meta") or {}), SERVER_INFO_META_KEY: _INFO}
    if SUBSCRIPTION_ID_META_KEY in meta:
        meta[SUBSCRIPTION_ID_META_KEY] = request
    return {"resultType": "complete", **result, "_meta": meta}


def handshake_result(result: Json) -> Json:
    """A server's result for a client of the handshake's era. Raises `ErrorAnswer` where it is a question."""
    if _asks(result):
        problem = "the server asks for input by a result, which clients of the handshake's era do not know"
        raise ErrorAnswer({"code": INVALID_REQUEST, "message": problem})
    said = cast("Json", result.get("_meta") or {})
    meta = {name: value for name, value in said.items() if name != SERVER_INFO_META_KEY}
    kept = {name: value for name, value in result.items() if name not in _MODERN_ONLY and name != "_meta"}
    return {**kept, "_meta": meta} if meta else kept
