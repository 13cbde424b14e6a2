"""Calls as the command line names them: `[SERVER/]TOOL` with arguments in JSON, and the doctor's `--call`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.rollout.doctor.plan import CallOption
from mcp_rollout.rollout.doctor.report import ServerReport


def parse_call_option(text: str, servers: Sequence[str]) -> CallOption:
    """Parse the value of `--call`. Raises ConfigError: an unknown server, or no JSON object."""
    name, given, arguments = text.partition("=")
    known = addressed_server(name, servers)
    server, tool = (known, name.removeprefix(f"{known}/")) if known else name.rpartition("/")[::2]
    if server and server not in servers:
        remedy = f"servers: {', '.join(servers)}"
        raise ConfigError(f"no server {server!r}", key=f"--call {tool}", remedy=remedy)
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


def check_tools(options: Sequence[CallOption], reports: Sequence[ServerReport]) -> None:
    """Raises ConfigError: a call names a tool that no server has. A server without a list of tools may have it."""
    for call in options:
        asked = [report for report in reports if call.server in (None, report.server)]
        names = {name for report in asked for tool in report.tools for name in (tool.tool, tool.name)}
        if call.tool not in names and all(report.tools for report in asked):
            remedy = f"tools: {', '.join(sorted(names))}"
            raise ConfigError(f"no server has a tool {call.tool!r}", key=f"--call {call.tool}", remedy=remedy)
