"""Rehearse a server's reset before its process is forked, so that no fork runs this code for the first time.

The interpreter specialises bytecode after eight calls, and libraries build what they put off: a fork has what was there
before it.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any, cast

import pydantic_core
from mcp.server.connection import Connection
from mcp.server.mcpserver import MCPServer
from mcp_types import CLIENT_CAPABILITIES_META_KEY, CLIENT_INFO_META_KEY, PROTOCOL_VERSION_META_KEY
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from mcp_servers.kit.direct.calls import DirectCalls
from mcp_servers.kit.direct.lines import LineServer
from mcp_servers.kit.direct.streams import Output
from mcp_servers.kit.roles import REHEARSAL_META
from mcp_servers.kit.state import SEED_META, TRAJECTORY_META

FORK_SERVER = "mcp_rollout_fork_server"
"""The module in a process that is prepared for forks; it runs the coroutine functions in its list `rehearsals`."""
_ROUNDS = 10
_VERSION = MODERN_PROTOCOL_VERSIONS[-1]
_CLIENT = {"name": "rehearsal", "version": "1"}
_META = {
    PROTOCOL_VERSION_META_KEY: _VERSION,
    CLIENT_INFO_META_KEY: _CLIENT,
    CLIENT_CAPABILITIES_META_KEY: dict[str, Any](),
    TRAJECTORY_META: "rehearsal",
    SEED_META: 0,
    "progressToken": 1,
}


def offer(server: MCPServer, calls: DirectCalls) -> None:
    """Have the reset that the server allows to be rehearsed, and its release, run before this process is forked."""
    fork_server: Any = sys.modules.get(FORK_SERVER)
    if fork_server is not None:
        fork_server.rehearsals.append(partial(_rehearse, server, calls))


async def _rehearse(server: MCPServer, calls: DirectCalls) -> None:
    for tool in await server.list_tools():
        arguments = (tool.meta or {}).get(REHEARSAL_META)
        if isinstance(arguments, dict):
            await _play(calls, cast("dict[str, Any]", arguments))
            return


async def _play(calls: DirectCalls, arguments: dict[str, Any]) -> None:
    """Resets and releases one trajectory, again and again, by lines as a client sends them.

    Args:
        arguments: Of the reset.
    """
    calls.connection = Connection.from_envelope(_VERSION, _CLIENT, {})
    try:
        lines = LineServer(calls, _Discarded())
        lines.to_sdk = lambda _: None
        for number in range(_ROUNDS):
            for tool, given in (("reset", arguments), ("release", dict[str, Any]())):
                params = {"name": tool, "arguments": given, "_meta": _META}
                request = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
                lines.receive(pydantic_core.to_json(request))
                await lines.answered()
    finally:
        # Nothing was served yet: the first request of a client is the SDK's.
        calls.connection = None


class _Discarded(Output):
    """Answers that no client reads."""

    def _flush(self) -> None:
        self._lines.clear()
        self._bytes = 0
        self._written()
