"""The former place of `mcp_servers.kit.serve`."""

from mcp_servers.kit.serve import main, parser, serve

__all__ = ["main", "parser", "serve"]
