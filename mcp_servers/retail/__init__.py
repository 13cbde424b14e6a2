"""Customer service of a small shop: tools, a written policy, tasks, an expert, a scripted customer and a score."""

from mcp_rollout.mcp_servers.retail.server import create_server

__all__ = ["create_server"]
