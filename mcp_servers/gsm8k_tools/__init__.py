"""Word problems of several steps, a calculator, and a user who says whether the answer is right."""

from mcp_rollout.mcp_servers.gsm8k_tools.server import create_server

__all__ = ["create_server"]
