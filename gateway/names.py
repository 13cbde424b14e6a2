"""The names under which the policy sees tools: their own, or `server__tool` where servers share one."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from gateway.errors import ConfigError
from gateway.types import Audience, ToolDefinition


def expose(
    catalogue: Mapping[str, tuple[ToolDefinition, ...]],
) -> dict[str, tuple[ToolDefinition, ...]]:
    """Give every policy tool a name of its own. Raises `ConfigError` when even `server__tool` is taken."""
    counts = Counter(tool.name for tools in catalogue.values() for tool in tools if tool.audience is Audience.POLICY)
    exposed = {server: tuple(_named(tool, counts) for tool in tools) for server, tools in catalogue.items()}
    finals = Counter(
        tool.exposed_name for tools in exposed.values() for tool in tools if tool.audience is Audience.POLICY
    )
    for name, count in finals.items():
        if count > 1:
            raise ConfigError(f"{count} tools would be called {name!r}", key="servers", remedy="rename a server")
    return exposed


def _named(tool: ToolDefinition, counts: Mapping[str, int]) -> ToolDefinition:
    if tool.audience is not Audience.POLICY or counts[tool.name] == 1:
        return tool
    # Chat formats take letters, digits, dash and underscore; a server's name may hold anything.
    prefix = re.sub(r"[^A-Za-z0-9_-]", "_", tool.server)
    return replace(tool, exposed_name=f"{prefix}__{tool.name}")
