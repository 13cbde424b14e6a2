"""Worlds that another gateway holds, over MCP: the client's side. `gateway.serve` is the server's."""
