"""One request of an MCP client within its world: the tool or servers it means, and their result as its era has it."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from importlib.metadata import version
from typing import Any, cast

import anyio
from mcp_types import INVALID_PARAMS, INVALID_REQUEST, LOG_LEVEL_META_KEY, METHOD_NOT_FOUND, SERVER_INFO_META_KEY

from mcp_rollout.gateway.connection.calls import ROUND_S
from mcp_rollout.gateway.connection.relay import ErrorAnswer, ForwardedRequest, Json, Relay, without_own
from mcp_rollout.gateway.connection.resource_calls import pages
from mcp_rollout.gateway.errors import GatewayError, ProtocolError
from mcp_rollout.gateway.leases.session import Session
from mcp_rollout.gateway.remote.outcome import encoded_failure, encoded_result
from mcp_rollout.gateway.serve.client_gateways import ClientGateway
from mcp_rollout.gateway.server_events import ServerEvents

WORLD_META = "mcp-rollout/world"
"""In the `_meta` of results, and of a client's later requests: its world, where the era has no sessions."""
_INFO: Json = {"name": "mcp-rollout", "version": version("mcp-rollout")}
_MODERN_ONLY = frozenset(("resultType", "ttlMs", "cacheScope"))
_MARK = "mcp-rollout."
Send = Callable[[str, Json], Awaitable[Json]]
"""Sends the request with these parameters to a server. Raises `ErrorAnswer`, `GatewayError`."""

_LISTS = {"resources/list": "resources", "resources/templates/list": "resourceTemplates", "prompts/list": "prompts"}
CACHE: Json = {"ttlMs": 0, "cacheScope": "private"}
"""What results of `_CACHED` have in 2026-07-28, and lists joined here or of servers of the other era have not."""
_CACHED = frozenset((*_LISTS, "resources/read"))
_SEPARATOR = "__"


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
                return result
            asked = cast("Mapping[str, Json]", result.get("inputRequests") or {})
            answers = {
                key: await self.request(str(one.get("method")), cast("Json", one.get("params") or {}))
                for key, one in asked.items()
            }
            more: Json = {"inputResponses": answers} if answers else {}
            if (state := result.get("requestState")) is not None:
                more["requestState"] = state
            if not asked:
                await anyio.sleep(ROUND_S)
            # The whole request again: between rounds, all that a server of this era keeps is in `requestState`.
            result = await self._once({**params, **more})
        if rounds and result.get("resultType") == "input_required":
            raise ProtocolError(f"the server has no result after {rounds} rounds of answers", tool=self._method)
        return result

    async def _once(self, params: Json) -> Json:
        if self._method == "tools/call":
            return await self._call(params)
        if not self._client.relays:
            raise ErrorAnswer({"code": METHOD_NOT_FOUND, "message": "only tools are served here"})
        result = await route(self._client, self._method, params, self._send)
        is_whole = result.get("resultType") != "input_required"
        return {**CACHE, **result} if is_whole and self._method in _CACHED else result

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
                relay=self,
                wants_progress="progressToken" in self._meta,
            ),
        )


async def route(client: ClientGateway, method: str, params: Json, send: Send) -> Json:
    """The result of a request that is not a call of a tool.

    One server gets it as it is. Of several, those that declared the capability do: lists become one, prompts have their
    server's name before their own, and resources are asked of one after the other.

    Raises:
        ErrorAnswer: a server's error; or none of them has the method.
        GatewayError: what `send` raises.
    """
    # Whatever it declared: the server's own error is a better answer than one of ours.
    if len(client.capabilities) == 1:
        return await send(next(iter(client.capabilities)), params)
    servers = client.having(_capability(method))
    if len(servers) == 1:
        return await send(servers[0], params)
    if not servers:
        raise ErrorAnswer({"code": METHOD_NOT_FOUND, "message": f"Method not found: {method[:100]}"})
    reference = cast("Json", params.get("ref") or {})
    if method in _LISTS:
        return await _merged(client, method, servers, send)
    if method == "prompts/get" or "name" in reference:
        named = params if method == "prompts/get" else reference
        server, _, name = str(named.get("name")).partition(_SEPARATOR)
        if server not in servers:
            raise ErrorAnswer({"code": INVALID_PARAMS, "message": f"Unknown prompt: {named.get('name')}"})
        own = {**named, "name": name}
        return await send(server, own if method == "prompts/get" else {**params, "ref": own})
    if method == "logging/setLevel":
        # The client sets one level for all servers; their results are empty.
        return [await send(server, params) for server in servers][-1]
    return await _first(servers, params, send)


def _capability(method: str) -> str:
    room = method.partition("/")[0]
    return {"completion": "completions"}.get(room, room)


async def _merged(client: ClientGateway, method: str, servers: list[str], send: Send) -> Json:
    kind, found, missing = _LISTS[method], list[Json](), list[ErrorAnswer]()
    for server in servers:
        try:
            async for page in pages(partial(send, server), client.gateway.config.servers[server].max_message_bytes):
                for each in cast("list[Json]", page.get(kind) or []):
                    name = f"{server}{_SEPARATOR}{each.get('name')}" if kind == "prompts" else each.get("name")
                    found.append({**each, "name": name})
        except ErrorAnswer as error:
            # A server with resources need not have templates of them.
            if error.error.get("code") != METHOD_NOT_FOUND:
                raise
            missing.append(error)
        except ValueError as error:
            raise ProtocolError(str(error), server=server, tool=method) from error
    if len(missing) == len(servers):
        raise missing[-1]
    return {kind: found}


async def _first(servers: list[str], params: Json, send: Send) -> Json:
    """The first result; the last error where there is none. Reading twice does no harm."""
    for server in servers[:-1]:
        try:
            return await send(server, params)
        # An error is how a server says that the resource is another's; a broken one ends the request.
        except ErrorAnswer:
            continue
    return await send(servers[-1], params)


def enveloped(result: Mapping[str, Any], **meta: str) -> Json:
    """A result of 2026-07-28: with its type, and the identity of this server in place of the server's behind it."""
    said = {**cast("Json", result.get("_meta") or {}), **meta, SERVER_INFO_META_KEY: _INFO}
    return {"resultType": "complete", **result, "_meta": said}


def in_era(result: Json, handle: str, *, modern: bool) -> Json:
    """A server's result for a client of either era."""
    if modern:
        return enveloped(result, **{WORLD_META: handle})
    said = cast("Json", result.get("_meta") or {})
    meta = {name: value for name, value in said.items() if name != SERVER_INFO_META_KEY}
    kept = {name: value for name, value in result.items() if name not in _MODERN_ONLY and name != "_meta"}
    return {**kept, "_meta": meta} if meta else kept


def joined_state(result: Json, handle: str) -> Json:
    """A question of the server with its world in `requestState`: the answer has to reach the same one.

    The handle cannot be guessed, and the server's own state follows it as it is, for the server to verify.
    """
    if result.get("resultType") != "input_required":
        return result
    state = result.get("requestState")
    return {**result, "requestState": f"{_MARK}{handle}" + (f".{state}" if state is not None else "")}


def split_state(params: Json) -> str:
    """Take the world out of a request's `requestState`, and leave the server's own; returns the handle."""
    state = params.get("requestState")
    if not isinstance(state, str):
        return ""
    handle, dot, own = state.removeprefix(_MARK).partition(".")
    if dot:
        params["requestState"] = own
    else:
        del params["requestState"]
    return handle if state.startswith(_MARK) else "?"
