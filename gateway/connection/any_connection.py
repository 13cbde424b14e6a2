"""One call of a session, and what a session needs of the connection that carries it, wherever the server runs."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import anyio

from gateway.types import ToolDefinition, ToolResult

if TYPE_CHECKING:
    from gateway.connection.in_flight import InFlightCall


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

    def call(self, call: OutgoingCall, meta: Mapping[str, Any]) -> Coroutine[Any, Any, ToolResult]:
        """As `Connection.call`."""
        ...

    def end(self, reason: str = ...) -> None:
        """Ask for the connection to be closed, and return at once."""
        ...
