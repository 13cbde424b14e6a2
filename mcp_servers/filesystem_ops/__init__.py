"""Work on a tree of files that somebody else's server does: this one lays it out, and looks at what became of it."""

from mcp_servers.filesystem_ops.server import create_server

__all__ = ["create_server"]
