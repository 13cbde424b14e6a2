"""The `mcp-rollout` command. Exit status: 0 well, 1 findings, 2 bad use or a configuration that cannot work."""

from mcp_rollout.rollout.cli.app import main

__all__ = ["main"]
