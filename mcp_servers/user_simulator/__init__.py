"""A scripted user over several turns, as an MCP server: the harness tools `reset`, `start`, `reply` and `release`."""

from mcp_servers.user_simulator.scenario import Cue, Scenario, Step
from mcp_servers.user_simulator.server import create_server

__all__ = ["Cue", "Scenario", "Step", "create_server"]
