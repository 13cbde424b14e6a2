"""MCP servers that make environments: ordinary MCP programs that import `mcp` and nothing of the gateway."""
