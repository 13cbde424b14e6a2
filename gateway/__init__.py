"""Connect to MCP servers and lease them to trajectories: each gets its own sessions, processes or state."""
