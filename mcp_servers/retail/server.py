"""The shop as an MCP server."""

from __future__ import annotations

from typing import Literal

from mcp.server.mcpserver import MCPServer

from mcp_servers.retail.counter import COUNTER_POLICY, CounterSlice
from mcp_servers.retail.harness_tools import add_harness
from mcp_servers.retail.policy import POLICY
from mcp_servers.retail.policy_tools import add_read_tools, add_write_tools

Slice = Literal["all"] | CounterSlice
"""Which tasks the server lists, and which policy text it gives: the whole shop's, or the counter's."""


def create_server(*, slice_: Slice = "all", max_trajectories: int = 4096) -> MCPServer:
    server = MCPServer("retail", instructions=POLICY if slice_ == "all" else COUNTER_POLICY, log_level="WARNING")
    harness = add_harness(server, slice_, max_trajectories)
    add_read_tools(server, harness)
    add_write_tools(server, harness)
    return server
