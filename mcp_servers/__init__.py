"""Environments as MCP servers: ordinary MCP programs that import `mcp` and nothing of the gateway."""
