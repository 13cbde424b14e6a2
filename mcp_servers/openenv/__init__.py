"""An OpenEnv server as an MCP server of worlds, see docs/environments.md."""
