"""Calls as the command line names them: `[SERVER/]TOOL` with arguments in JSON, and the doctor's `--call`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from gateway.config.models import GatewayConfig
from gateway.errors import ConfigError, raise_all
from gateway.types import ToolDefinition
from rollout.doctor.plan import CallOption, argument_faults
from rollout.doctor.throwaway import on_copies
from rollout.environment.startup import opened_where_possible


def parse_call_option(text: str, servers: Sequence[str]) -> CallOption:
    """Parse the value of `--call`. Raises ConfigError: the arguments are not a JSON object."""
    name, given, arguments = text.partition("=")
    known = addressed_server(name, servers)
    server, tool = (known, name.removeprefix(f"{known}/")) if known else name.rpartition("/")[::2]
    parsed = parse_arguments(arguments if given else "{}", key=f"--call {name}", example='TOOL={"x": 1}')
    return CallOption(server=server or None, tool=tool, arguments=parsed)


def addressed_server(name: str, servers: Sequence[str]) -> str | None:
    """Return the server of `SERVER/TOOL`, None if no server is named; names of servers may contain slashes, too."""
    return max((server for server in servers if name.startswith(f"{server}/")), key=len, default=None)


def parse_arguments(text: str, *, key: str, example: str) -> dict[str, Any]:
    """Raises ConfigError: the text is not a JSON object."""
    try:
        parsed: object = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"the arguments are not JSON: {error}", key=key, remedy=example) from error
    if not isinstance(parsed, dict):
        raise ConfigError("the arguments are not a JSON object", key=key, remedy=example)
    return cast("dict[str, Any]", parsed)


async def check_call_options(config: GatewayConfig, options: Sequence[CallOption], *, source: str | Path) -> None:
    """Start the servers that the calls address, and compare the calls with their tools.

    Raises:
        ConfigError: calls of unknown servers or tools, or with arguments that the tool's schema refuses.
    """
    unknown = [call for call in options if call.server is not None and call.server not in config.servers]
    remedy = f"servers: {', '.join(config.servers)}"
    raise_all([ConfigError(f"no server {call.server!r}", key=f"--call {call.tool}", remedy=remedy) for call in unknown])
    wanted = {call.server for call in options}
    servers = {server: entry for server, entry in config.servers.items() if None in wanted or server in wanted}
    if not servers or not options:
        return
    chosen = config.model_copy(update={"servers": servers, "elicitation": None})
    with on_copies(chosen) as copied:
        async with opened_where_possible(copied, name="doctor", source=source) as (gateway, _):
            catalogue = dict(gateway.catalogue)
    complete = len(catalogue) == len(servers)
    as_sent = config.calls.as_sent
    raise_all([fault for call in options for fault in _faults(call, catalogue, complete=complete, as_sent=as_sent)])


def _faults(
    call: CallOption, catalogue: Mapping[str, Sequence[ToolDefinition]], *, complete: bool, as_sent: bool
) -> list[ConfigError]:
    key = f"--call {call.tool}"
    offered = [
        tool
        for server, tools in catalogue.items()
        for tool in tools
        if tool.role is None and call.server in (None, server)
    ]
    named = [tool for tool in offered if call.tool in (tool.name, tool.exposed_name)]
    if not named:
        if not (complete or call.server in catalogue):
            return []  # a server that did not start may have the tool; its report explains why it did not start
        names = ", ".join(sorted(tool.name for tool in offered)) or "none"
        return [ConfigError(f"no server has a tool {call.tool!r}", key=key, remedy=f"tools: {names}")]
    faults = [(tool.server, argument_faults(tool, call.arguments, as_sent=as_sent)) for tool in named]
    return [
        ConfigError(f"{server}'s schema refuses the arguments: {'; '.join(found)}", key=key, remedy="correct them")
        for server, found in faults
        if found
    ]
