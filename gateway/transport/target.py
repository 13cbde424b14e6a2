"""Choose the transport of a connection."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, cast

from mcp_rollout.gateway.config.models import Kind, ServerConfig
from mcp_rollout.gateway.config.user_code import import_function
from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.gateway.transport.channel import SessionChannel
from mcp_rollout.gateway.transport.forks import Forks
from mcp_rollout.gateway.transport.http import http_streams
from mcp_rollout.gateway.transport.http_connection import HttpConnections
from mcp_rollout.gateway.transport.line_calls import LineExchange, MemoryTransport
from mcp_rollout.gateway.transport.link import Link
from mcp_rollout.gateway.transport.negotiated import Connect, Target
from mcp_rollout.gateway.transport.sse import SseTransport
from mcp_rollout.gateway.transport.stdio import StdioTransport


def open_target(
    server: str,
    config: ServerConfig,
    link: Link,
    *,
    connect: Connect | None = None,
    connections: HttpConnections,
    forks: Forks | None = None,
) -> Target:
    """The target for one connection; nothing is connected yet. Raises `ConfigError` as `_build` does."""
    link.channel = SessionChannel()  # in whose place a transport may put its own
    if connect is not None and (given := connect(config, server)) is not None:
        return _given(given, server, config, link)
    match config.kind:
        case Kind.STDIO:
            return Target(StdioTransport(server, config, link, forks), notes_delivery=True)
        case Kind.HTTP:
            return Target(http_streams(config, link, connections=connections), notes_delivery=True)
        case Kind.SSE:
            return Target(SseTransport(config, link, connections=connections), notes_delivery=True)
        case Kind.IN_PROCESS:
            return _given(_build(config, server), server, config, link)


def _given(target: Any, server: str, config: ServerConfig, link: Link) -> Target:
    """What `mcp.Client` connects to itself, or a server in this process that exchanges lines."""
    if isinstance(target, LineExchange):
        return Target(MemoryTransport(server, target, config, link), notes_delivery=True)
    return Target(target, notes_delivery=False)


def _build(config: ServerConfig, server: str) -> Any:
    """Call an in-process server's `factory`.

    Raises:
        ConfigError: there is none by that name, or it returns no server.
    """
    # Here, since a gateway without servers in process does without the SDK's server.
    from mcp.server.lowlevel import Server
    from mcp.server.mcpserver import MCPServer

    key = f"servers.{server}.factory"
    made: Any = import_function(config.factory or "", key=key)()
    kinds: Any = (LineExchange, MCPServer, Server)
    if isinstance(made, kinds) or hasattr(made, "__aenter__"):
        return made
    kind = type(made).__name__
    if isinstance(made, Coroutine):
        cast("Coroutine[Any, Any, Any]", made).close()  # Python would warn that it was never awaited
    problem = f"{config.factory} returned {kind}, which is not a server"
    raise ConfigError(problem, key=key, remedy="return an MCPServer, or mcp_rollout.mcp_servers.kit.InProcess(server)")
