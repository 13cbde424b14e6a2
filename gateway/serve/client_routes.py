"""Which servers a client's request goes to, and one result of several servers' results."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

from mcp_types import INVALID_PARAMS, METHOD_NOT_FOUND

from gateway.connection.relay import ErrorAnswer, Json
from gateway.serve.client_gateways import ClientGateway

Send = Callable[[str, Json], Awaitable[Json]]
"""Sends the request with these parameters to a server. Raises `ErrorAnswer`, `GatewayError`."""

_LISTS = {"resources/list": "resources", "resources/templates/list": "resourceTemplates", "prompts/list": "prompts"}
_MOST_PAGES = 100
_SEPARATOR = "__"


async def route(client: ClientGateway, method: str, params: Json, send: Send) -> Json:
    """The result of a request that is no call of a tool.

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
        return await _merged(_LISTS[method], servers, send)
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


async def _merged(kind: str, servers: list[str], send: Send) -> Json:
    found: list[Json] = []
    for server in servers:
        cursor: Any = None
        # A server may send cursors without end.
        for _ in range(_MOST_PAGES):
            page = await send(server, {} if cursor is None else {"cursor": cursor})
            for each in cast("list[Json]", page.get(kind) or []):
                name = f"{server}{_SEPARATOR}{each.get('name')}" if kind == "prompts" else each.get("name")
                found.append({**each, "name": name})
            if not isinstance(cursor := page.get("nextCursor"), str):
                break
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
