"""Connect to MCP servers and lease them to trajectories: each gets its own sessions, processes or state."""

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
    "config.models": ("GatewayConfig", "ServerConfig"),
    "config.servers_file": ("load_servers",),
    "errors": ("ConfigError", "DeliveryUnknown", "GatewayError", "LeaseTimeout", "ServerUnavailable"),
    "gateway": ("Gateway",),
    "leases.session": ("Session",),
    "types": ("Audience", "Role", "Scope", "ToolDefinition", "ToolResult"),
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
    # Importing mcp takes a second, which reading traces, say, should not wait for: it needs `gateway.errors` only.
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"gateway.{home}"), name)
    raise AttributeError(name)
