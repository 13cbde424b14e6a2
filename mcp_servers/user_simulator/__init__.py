"""A scripted user over several turns, as an MCP server whose tools are all for the harness."""

from mcp_servers.user_simulator.scenario import Answer, Cue, Scenario, Step
from mcp_servers.user_simulator.server import create_server

__all__ = ["Answer", "Cue", "Scenario", "Step", "create_server"]
