"""Calls that the user named, held against what the servers offer before any of them is examined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from gateway.config.models import GatewayConfig
from gateway.errors import ConfigError, raise_all
from gateway.types import ToolDefinition
from rollout.doctor.plan import NamedCall, argument_faults
from rollout.environment.startup import opened_where_possible


async def check_named(config: GatewayConfig, named: Sequence[NamedCall], *, source: str | Path) -> None:
    """Start the servers that the calls are for, and list their tools.

    Raises:
        ConfigError: no such server or tool, or arguments that the tool's schema refuses; all of them are told.
    """
    unknown = [call for call in named if call.server is not None and call.server not in config.servers]
    remedy = f"servers: {', '.join(config.servers)}"
    raise_all([ConfigError(f"no server {call.server!r}", key=f"--call {call.tool}", remedy=remedy) for call in unknown])
    wanted = {call.server for call in named}
    servers = {server: entry for server, entry in config.servers.items() if None in wanted or server in wanted}
    if not servers or not named:
        return
    chosen = config.model_copy(update={"servers": servers, "elicitation": None})
    async with opened_where_possible(chosen, name="doctor", source=source) as (gateway, _):
        catalogue = dict(gateway.catalogue)
    raise_all([fault for call in named for fault in _faults(call, catalogue, complete=len(catalogue) == len(servers))])


def _faults(call: NamedCall, catalogue: Mapping[str, Sequence[ToolDefinition]], *, complete: bool) -> list[ConfigError]:
    key = f"--call {call.tool}"
    offered = [
        tool
        for server, tools in catalogue.items()
        for tool in tools
        if tool.role is None and call.server in (None, server)
    ]
    meant = [tool for tool in offered if call.tool in (tool.name, tool.exposed_name)]
    if not meant:
        if not (complete or call.server in catalogue):
            return []  # a server that did not start may have it; its report says why it did not
        names = ", ".join(sorted(tool.name for tool in offered)) or "none"
        return [ConfigError(f"no server has a tool {call.tool!r}", key=key, remedy=f"tools: {names}")]
    return [
        ConfigError(
            f"{tool.server}'s schema refuses the arguments: {'; '.join(faults)}", key=key, remedy="correct them"
        )
        for tool in meant
        if (faults := argument_faults(tool, call.arguments))
    ]
