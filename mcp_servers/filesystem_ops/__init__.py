"""Work on a tree of files through another project's filesystem server; this one lays the tree out and scores it."""

from mcp_rollout.mcp_servers.filesystem_ops.server import create_server

__all__ = ["create_server"]
