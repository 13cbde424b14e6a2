"""Connect to MCP servers and lease them to trajectories: each gets its own sessions, processes or state.

The names are found in their modules when they are asked for: importing mcp takes a second, which reading traces, say,
should not wait for, as it needs `gateway.errors` only.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gateway.config.models import GatewayConfig, ServerConfig
    from gateway.config.servers_file import load_servers
    from gateway.errors import ConfigError, DeliveryUnknown, GatewayError, LeaseTimeout, ServerUnavailable
    from gateway.gateway import Gateway
    from gateway.leases.session import Session
    from gateway.types import Audience, Role, Scope, ToolDefinition, ToolResult

_HOMES = {
    "gateway.config.models": ("GatewayConfig", "ServerConfig"),
    "gateway.config.servers_file": ("load_servers",),
    "gateway.errors": ("ConfigError", "DeliveryUnknown", "GatewayError", "LeaseTimeout", "ServerUnavailable"),
    "gateway.gateway": ("Gateway",),
    "gateway.leases.session": ("Session",),
    "gateway.types": ("Audience", "Role", "Scope", "ToolDefinition", "ToolResult"),
}

__all__ = [
    "Audience",
    "ConfigError",
    "DeliveryUnknown",
    "Gateway",
    "GatewayConfig",
    "GatewayError",
    "LeaseTimeout",
    "Role",
    "Scope",
    "ServerConfig",
    "ServerUnavailable",
    "Session",
    "ToolDefinition",
    "ToolResult",
    "load_servers",
]


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(name)
