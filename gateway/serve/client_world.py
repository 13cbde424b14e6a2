"""One request of an MCP client within its world: which tool or server it means, and the servers' result."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from mcp_types import INTERNAL_ERROR, INVALID_PARAMS, LOG_LEVEL_META_KEY, METHOD_NOT_FOUND

from gateway.connection.relay import ErrorAnswer, ForwardedRequest, Json, Relay, without_own
from gateway.errors import GatewayError
from gateway.remote.outcome import encoded_failure, encoded_result
from gateway.serve.client_gateways import ClientGateway
from gateway.serve.client_routes import route
from gateway.server_events import ServerEvents

if TYPE_CHECKING:
    from gateway.leases.session import Session

MOST_ROUNDS = 10
"""How often a server may come back with a question."""

DEFECT: Json = {"code": INTERNAL_ERROR, "message": "the request failed within this server; its log has more"}


def error_of(error: ErrorAnswer | GatewayError) -> Json:
    """The JSON-RPC error for a client: a server's own as it is, else what broke."""
    return error.error if isinstance(error, ErrorAnswer) else encoded_failure(error)


class WorldRequest:
    """A request within a world.

    Args:
        relay: The way back to the client.
        meta: The client's `_meta`.
    """

    def __init__(self, client: ClientGateway, session: Session, relay: Relay, method: str, meta: Json) -> None:
        self._client, self._session, self._relay = client, session, relay
        self._method, self._meta = method, meta

    async def result(self, params: Json, *, rounds: int) -> Json:
        """The servers' result.

        Args:
            rounds: How many questions of a server are asked as requests, for a client that does not know them as
                results.

        Raises:
            ErrorAnswer, GatewayError: for `error_of`.
        """
        result = await self._once(params)
        for _ in range(rounds):
            if result.get("resultType") != "input_required":
                break
            asked = cast("Mapping[str, Json]", result.get("inputRequests") or {})
            answers = {
                key: await self._relay.request(str(one.get("method")), cast("Json", one.get("params") or {}))
                for key, one in asked.items()
            }
            more: Json = {"inputResponses": answers} if answers else {}
            if (state := result.get("requestState")) is not None:
                more["requestState"] = state
            # The whole request again: between rounds, all that a server of this era keeps is in `requestState`.
            result = await self._once({**params, **more})
        return result

    async def _once(self, params: Json) -> Json:
        if self._method == "tools/call":
            return await self._call(params)
        if not self._client.relays:
            raise ErrorAnswer({"code": METHOD_NOT_FOUND, "message": "only tools are served here"})
        return await route(self._client, self._method, params, self._send)

    async def _call(self, params: Json) -> Json:
        name: Any = params.get("name")
        arguments: Any = params.get("arguments") or {}
        tool = self._session.tools.get(name) if isinstance(name, str) else None
        if tool is None:  # as the SDK's servers answer; a harness tool's name is unknown like any other
            return {"content": [{"type": "text", "text": f"Unknown tool: {name}"}], "isError": True}
        if not isinstance(arguments, dict):
            raise ErrorAnswer({"code": INVALID_PARAMS, "message": "arguments must be an object"})
        given = cast("Json", arguments)
        if not self._client.relays or tool.resource_kind is not None:
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
                relay=self._relay,
                wants_progress="progressToken" in self._meta,
            ),
        )
