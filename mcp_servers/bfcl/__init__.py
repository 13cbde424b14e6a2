"""The multi-turn tasks of the Berkeley Function Calling Leaderboard as an MCP server, see docs/benchmarks.md."""

from mcp_rollout.mcp_servers.bfcl.server import create_server

__all__ = ["create_server"]
