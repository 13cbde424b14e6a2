"""Arithmetic tools without state, and word problems to use them on."""

from mcp_rollout.mcp_servers.calculator.server import create_server

__all__ = ["create_server"]
