"""What a session needs of a connection to a server, wherever the server runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import anyio

from gateway.connection.in_flight import InFlightCall
from gateway.types import ToolDefinition, ToolResult


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

    async def call(
        self,
        tool: ToolDefinition,
        arguments: Mapping[str, Any],
        *,
        meta: Mapping[str, Any],
        timeout_s: float,
        in_flight: InFlightCall | None = None,
    ) -> ToolResult:
        """As `Connection.call`."""
        ...

    def end(self, reason: str = ...) -> None:
        """Ask for the connection to be closed, and return at once."""
        ...
