"""A depot clerk who handles parcels one after the other: a long task for small models."""

from mcp_rollout.mcp_servers.depot.server import create_server

__all__ = ["create_server"]
