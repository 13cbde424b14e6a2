"""Search and read in a library of short articles, and questions that take several of them to answer."""

from mcp_rollout.mcp_servers.research.server import create_server

__all__ = ["create_server"]
