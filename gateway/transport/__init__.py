"""Ways to a server, byte by byte: processes, HTTP, SSE, in process; and mcp's types turned into ours."""
