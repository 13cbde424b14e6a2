"""A session of an OpenEnv server: requests over its WebSocket, and what it says of itself."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import httpx2
from mcp_types import ListToolsResult, Tool
from pydantic import BaseModel, Field

from mcp_rollout.mcp_servers.kit import ToolError
from mcp_rollout.mcp_wire import chat_api

try:
    from websockets.asyncio.client import ClientConnection, connect
    from websockets.exceptions import ConnectionClosed, WebSocketException
except ImportError as error:
    raise ImportError("mcp_rollout.mcp_servers.openenv needs websockets: pip install 'mcp-rollout[openenv]'") from error

M = TypeVar("M")
Json = dict[str, Any]
_MOST_BYTES = 1 << 24
_CLOSE_S = 1.0
"""How long a server may take to answer that a session is closed."""
_STEP = "One step of the environment; the result is its observation."
_ENDED = ("FACTORY_ERROR", "SESSION_ERROR")
"""Codes of errors after which the server closes the session."""


class Seen(BaseModel):
    """What a reset and a step return."""

    observation: Any = None
    reward: float | None = Field(default=None, allow_inf_nan=False)
    done: bool = False


class _Fault(BaseModel):
    loc: tuple[str | int, ...] = ()
    msg: str = ""


class Refusal(BaseModel):
    message: str
    code: str = ""
    errors: tuple[_Fault, ...] = ()
    max_sessions: int = 1


class _Kind(BaseModel):
    type: str = ""


class Answer(BaseModel, Generic[M]):
    data: M


class _Listed(BaseModel):
    result: ListToolsResult | None = None


class _Schemas(BaseModel):
    action: Json


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
        """The tool `step`, whose arguments are the environment's action. Raises ToolError."""
        try:
            with chat_api.transport_errors():
                async with asyncio.timeout(self.timeout_s), httpx2.AsyncClient(timeout=self.timeout_s) as client:
                    async with client.stream("GET", f"{self.url.rstrip('/')}/schema") as response:
                        content = await chat_api.read(response, _MOST_BYTES)
            chat_api.check_status(response, content)
            schema = chat_api.parsed(_Schemas, content).action
        except (chat_api.ApiError, TimeoutError) as error:
            raise ToolError(f"/schema: {_said(error, self.timeout_s)}") from error
        # Of `Action` itself: what the agent's program notes, not what the environment does.
        schema.get("properties", {}).pop("metadata", None)
        return Tool(name="step", description=_STEP, input_schema=schema)


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

    async def ask(self, form: type[Answer[M]], kind: str, data: Json | None = None) -> M:
        """The `data` of the answer.

        Raises:
            CapacityReached: The server holds no further session.
            ToolError: The server refuses, with its message; or the session is lost, and with it the world.
        """
        asked = {"type": kind} if data is None else {"type": kind, "data": data}
        async with self._turn:
            if self.lost:
                raise ToolError(self.lost)
            try:
                async with asyncio.timeout(self.timeout_s):
                    with suppress(ConnectionClosed):  # what the server said before it closed is still to be read
                        await self.socket.send(json.dumps(asked))
                    content = await self.socket.recv(decode=False)
                if chat_api.parsed(_Kind, content).type != "error":
                    return chat_api.parsed(form, content).data
                refused = chat_api.parsed(Answer[Refusal], content).data
            except (OSError, chat_api.ApiError, WebSocketException) as error:
                # An answer that comes later would be taken for that of the next request.
                self.lost = f"the session is lost: {_said(error, self.timeout_s)}"
                raise ToolError(self.lost) from error
            except asyncio.CancelledError:  # its answer may still come, as above
                self.lost = "the session is lost: a request was cancelled"
                raise
        if refused.code == "CAPACITY_REACHED":
            raise CapacityReached(refused.max_sessions)
        if refused.code in _ENDED:
            self.lost = f"the session is lost: {refused.message}"
        faults = (f"{'.'.join(map(str, fault.loc))}: {fault.msg}" for fault in refused.errors)
        raise ToolError("; ".join((refused.message, *faults)))

    async def tools(self) -> list[Tool]:
        """The environment's MCP tools; none where it is not an `MCPEnvironment`. Raises as `ask`."""
        listed = await self.ask(Answer[_Listed], "mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
        return listed.result.tools if listed.result else []

    async def aclose(self) -> None:
        await self.socket.close()


def _said(error: Exception, timeout_s: float) -> str:
    return str(error) or f"no answer within {timeout_s:g} s"
