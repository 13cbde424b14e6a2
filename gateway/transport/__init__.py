"""Transports: stdio processes, HTTP, SSE and in process; and the translation of mcp's types into ours."""
