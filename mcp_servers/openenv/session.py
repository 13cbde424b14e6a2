"""A session of an OpenEnv server: requests over its WebSocket, and what it says of itself."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

import httpx2
from mcp_types import ListToolsResult, Tool

from mcp_servers.kit import ToolError

try:
    from websockets.asyncio.client import ClientConnection, connect
    from websockets.exceptions import ConnectionClosed, WebSocketException
except ImportError as error:
    raise ImportError("mcp_servers.openenv needs websockets: pip install 'mcp-rollout[openenv]'") from error

Json = dict[str, Any]
_MOST_BYTES = 1 << 24
_CLOSE_S = 1.0
"""How long a server may take to answer that a session is closed."""
_ENDED = ("CAPACITY_REACHED", "FACTORY_ERROR", "SESSION_ERROR")
"""Codes of errors after which the server closes the session."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Address:
    """Where the server is, and how long to wait for it."""

    url: str
    """`http://HOST:PORT`, `https://...`."""
    timeout_s: float
    """For a connection, and for the answer to a request."""
    ping_s: float
    """After so long a ping is sent, and after as long again without an answer the session counts as lost: a half-open
    connection is noticed while a step takes long, and between steps."""

    async def open(self) -> Session:
        """A session of its own. Raises ToolError if there is none to be had."""
        url = f"ws{self.url.removeprefix('http').rstrip('/')}/ws"
        try:
            socket = await connect(
                url,
                open_timeout=self.timeout_s,
                ping_interval=self.ping_s,
                ping_timeout=self.ping_s,
                close_timeout=_CLOSE_S,
                max_size=_MOST_BYTES,
                proxy=None,
            )
        except (OSError, WebSocketException) as error:
            raise ToolError(f"no OpenEnv server: {url}: {error}") from error
        return Session(socket, self.timeout_s)

    async def step_tool(self) -> Tool:
        """The tool `step`, whose arguments are the environment's action. Raises httpx2.HTTPError and ValueError."""
        async with httpx2.AsyncClient(timeout=self.timeout_s) as client:
            answer = await client.get(f"{self.url.rstrip('/')}/schema")
            schema: Json = answer.raise_for_status().json()["action"]
        # Of `Action` itself: what the agent's program notes, not what the environment does.
        properties = {name: each for name, each in schema.get("properties", {}).items() if name != "metadata"}
        words = "One step of the environment; the result is its observation."
        return Tool(name="step", description=words, input_schema={**schema, "properties": properties})


class CapacityReached(ToolError):
    """The server holds no further session."""

    def __init__(self, most: int) -> None:
        super().__init__(
            f"the OpenEnv server holds {most} session{'s' * (most != 1)} at a time: its max_concurrent_envs, which may "
            "be above 1 only where the environment sets SUPPORTS_CONCURRENT_SESSIONS"
        )
        self.most = most


@dataclass(slots=True)
class Session:
    """One WebSocket, which the server gives an environment of its own. Requests take turns."""

    socket: ClientConnection
    timeout_s: float
    lost: str = ""
    """Why there is no session any more."""
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def ask(self, kind: str, data: Json | None = None) -> Json:
        """The `data` of the answer.

        Raises:
            CapacityReached: The server holds no further session.
            ToolError: The server refuses, with its message; or the session is lost, and with it the world.
        """
        async with self._turn:
            if self.lost:
                raise ToolError(self.lost)
            try:
                async with asyncio.timeout(self.timeout_s):
                    with suppress(ConnectionClosed):  # what the server said before it closed is still to be read
                        await self.socket.send(json.dumps({"type": kind, **({} if data is None else {"data": data})}))
                    answer = cast("Json", json.loads(await self.socket.recv()))
            except (OSError, ValueError, WebSocketException) as error:
                # An answer that comes later would be taken for that of the next request.
                self.lost = f"the session is lost: {str(error) or f'no answer within {self.timeout_s:g} s'}"
                raise ToolError(self.lost) from error
        said: Json = answer.get("data") or {}
        if answer.get("type") != "error":
            return said
        if said.get("code") == "CAPACITY_REACHED":
            raise CapacityReached(int(said.get("max_sessions") or 1))
        if said.get("code") in _ENDED:
            self.lost = f"the session is lost: {said.get('message')}"
        faults = cast("list[Json]", said.get("errors") or [])
        raise ToolError("; ".join([str(said.get("message")), *map(_fault, faults)]))

    async def tools(self) -> list[Tool]:
        """The environment's MCP tools; none where it is not an `MCPEnvironment`. Raises as `ask`, and ValueError."""
        answer = await self.ask("mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}})
        return ListToolsResult.model_validate(answer.get("result") or {"tools": []}).tools

    async def aclose(self) -> None:
        await self.socket.close()


def _fault(error: Json) -> str:
    return f"{'.'.join(map(str, error.get('loc', ())))}: {error.get('msg')}"
