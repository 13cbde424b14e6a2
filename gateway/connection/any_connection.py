"""One call of a session, and what a session needs of the connection that carries it, wherever the server runs."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import anyio

from gateway.config.models import ServerConfig
from gateway.connection.identity import ServerIdentity
from gateway.connection.in_flight import InFlightCall
from gateway.connection.relay import Forwards
from gateway.types import ToolDefinition, ToolResult


@dataclass(slots=True)
class OutgoingCall:
    """One call of a session. Not frozen: one is made for each call, and that takes a third of the time."""

    tool: ToolDefinition
    arguments: Mapping[str, Any]
    timeout_s: float
    """Suspended while the server waits for an answer to a request that it made."""
    in_flight: Callable[[], InFlightCall]
    """Makes the record of one attempt, which answers such requests and keeps what the server sends."""


class AnyConnection(Protocol):
    """A `Connection` of this gateway, or one server of a world that another gateway holds (`gateway.remote`)."""

    @property
    def server(self) -> str:
        """The server's name in this gateway."""
        ...

    @property
    def local(self) -> LocalConnection | None:
        """Itself, where this gateway holds it; None for a server of another gateway's world."""
        ...

    @property
    def alive(self) -> bool:
        """Whether a request can be sent."""
        ...

    @property
    def exhausted(self) -> str:
        """Which limit of its entry ended the server, as half a sentence; empty where none did."""
        ...

    @property
    def killed(self) -> str:
        """Which signal ended the server, as half a sentence; empty where it ended by itself or was to end."""
        ...

    @property
    def done(self) -> anyio.Event:
        """Set when nothing of the connection is left."""
        ...

    def call(self, call: OutgoingCall, meta: Mapping[str, Any], /) -> Coroutine[Any, Any, ToolResult]:
        """Send one request and wait for its result; safe from any task, any number at a time.

        Args:
            meta: The request's `_meta`.

        Raises:
            RequestRefused: the server requested input that no configured component could give.
            ServerUnavailable: the request surely did not run.
            DeliveryUnknown: it was sent, and the line broke before the answer.
            CallTimeout: it was not answered within its `timeout_s`.
            ProtocolError: the answer is not what the protocol or the tool's own output schema allows.
        """
        ...

    def end(self, reason: str = ...) -> None:
        """Ask for the connection to be closed, and return at once."""
        ...


class LocalConnection(AnyConnection, Protocol):
    """A `Connection`, as leases and those that examine servers use it; `gateway.connection.connection` says more."""

    @property
    def config(self) -> ServerConfig: ...

    @property
    def tools(self) -> tuple[ToolDefinition, ...]: ...

    @property
    def identity(self) -> ServerIdentity: ...

    @property
    def capabilities(self) -> dict[str, Any]: ...

    @property
    def start_s(self) -> float: ...

    @property
    def stray(self) -> str: ...

    @property
    def pid(self) -> int | None: ...

    @property
    def forwarding(self) -> Forwards: ...

    async def list_raw(self, *, timeout_s: float) -> list[Any]: ...

    async def list_again(self) -> tuple[ToolDefinition, ...] | None: ...
