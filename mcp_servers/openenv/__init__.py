"""An OpenEnv server as an MCP server of worlds, see docs/environments.md."""

from mcp_servers.openenv.server import create_server

__all__ = ["create_server"]
