"""Connect to MCP servers and lease them to trajectories: each gets its own sessions, processes or state.

`mcp_rollout` is the public package. The names here are found in their modules when they are asked for: importing mcp
takes a second, which reading traces, say, should not wait for, as it needs `gateway.errors` only.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

HOMES = {
    "gateway.config.models": ("GatewayConfig", "ServerConfig"),
    "gateway.config.servers_file": ("load_servers",),
    "gateway.errors": ("ConfigError", "DeliveryUnknown", "GatewayError", "LeaseTimeout", "ServerUnavailable"),
    "gateway.gateway": ("Gateway",),
    "gateway.leases.session": ("Session",),
    "gateway.types": ("Audience", "Role", "Scope", "ToolDefinition", "ToolResult"),
}


def __getattr__(name: str) -> Any:
    for home, names in HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(name)
