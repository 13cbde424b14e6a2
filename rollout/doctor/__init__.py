"""Probe MCP servers: whether they can be trained against and under which scope."""
