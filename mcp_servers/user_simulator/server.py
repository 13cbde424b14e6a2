"""The scripted user as an MCP server: harness tools only, nothing for the policy."""

from __future__ import annotations

from mcp.server.mcpserver import MCPServer

from mcp_servers.kit import Harness
from mcp_servers.user_simulator.conversation import Conversation
from mcp_servers.user_simulator.load import Scenarios


def create_server(scenarios: Scenarios) -> MCPServer:
    server = MCPServer("user_simulator", log_level="WARNING")
    harness = Harness(server, lambda task, seed: Conversation(scenarios(task, seed)))
    harness.start(lambda conversation: conversation.scenario.opening)
    harness.reply(Conversation.reply)
    harness.elicit(Conversation.elicit)
    return server
