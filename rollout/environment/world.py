"""The `World` protocol: the part of a session that turns use, so that a recording or a replay can replace it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from gateway.server_events import ServerEvents
from gateway.types import Role, ToolDefinition, ToolResult


class World(Protocol):
    """A part of `gateway.leases.session.Session`, where each member is described."""

    @property
    def tools(self) -> Mapping[str, ToolDefinition]: ...

    async def call(self, name: str, arguments: Any) -> ToolResult: ...

    async def invoke(self, role: Role, arguments: Mapping[str, Any], *, server: str) -> ToolResult: ...

    def reveal(self, names: Iterable[str]) -> None: ...

    def drain_server_events(self) -> ServerEvents: ...
