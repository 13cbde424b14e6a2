"""The gateway: any MCP server as tools for a rollout, each trajectory with a world of its own."""

from gateway.config.models import GatewayConfig, ServerConfig
from gateway.config.servers_file import load_servers
from gateway.errors import ConfigError, DeliveryUnknown, GatewayError, LeaseTimeout, ServerUnavailable
from gateway.gateway import Gateway
from gateway.leases.session import Session
from gateway.types import Audience, Role, Scope, ToolDefinition, ToolResult

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
