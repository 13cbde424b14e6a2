"""Small programming problems: code runs in a process that can reach nothing, and hidden tests are the score."""

from mcp_servers.sandbox.server import create_server

__all__ = ["create_server"]
