"""The shop as an MCP server."""

from __future__ import annotations

from random import Random
from typing import Literal

from mcp.server.mcpserver import MCPServer

from mcp_servers._state import TrajectoryState
from mcp_servers.retail.counter import COUNTER_POLICY, CounterSlice
from mcp_servers.retail.desk import Desk
from mcp_servers.retail.generate import make_world
from mcp_servers.retail.harness_tools import add_harness_tools
from mcp_servers.retail.policy import POLICY
from mcp_servers.retail.policy_tools import add_read_tools, add_write_tools

Slice = Literal["all"] | CounterSlice
"""Which tasks the server lists, and which policy text it gives: the whole shop's, or the counter's."""


def create_server(*, slice_: Slice = "all", max_trajectories: int = 4096) -> MCPServer:
    """The server; without `reset`, a trajectory gets a shop of its seed in which nobody has a task."""
    state = TrajectoryState(lambda seed: Desk(world=make_world(Random(seed))), max_states=max_trajectories)
    server = MCPServer("retail", instructions=POLICY if slice_ == "all" else COUNTER_POLICY, log_level="WARNING")
    add_read_tools(server, state)
    add_write_tools(server, state)
    add_harness_tools(server, state, slice_)
    return server
