"""Small programming problems: code runs in an isolated process, and hidden tests are the score."""

from mcp_rollout.mcp_servers.sandbox.server import create_server

__all__ = ["create_server"]
