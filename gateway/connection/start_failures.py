"""Build the error of a connection that did not start: its class, its cause and the remedy."""

from __future__ import annotations

import mcp_types as mcp
from mcp import MCPError

from gateway.config.models import ServerConfig
from gateway.errors import ConnectTimeout, NotAnMCPServer, ServerUnavailable, innermost
from gateway.transport.link import Link

_CLOSED = (mcp.CONNECTION_CLOSED, "Connection closed")
"""What mcp raises for a request whose streams ended."""


def not_in_time(server: str, config: ServerConfig, link: Link, abandoned: str | None) -> ServerUnavailable:
    """The error of a start that was cut.

    Args:
        abandoned: Why the gateway gave the start up; None where it exceeded `start_timeout_s`.
    """
    if abandoned is not None:
        return ServerUnavailable(f"given up during its handshake: {abandoned}", server=server)
    bound = f"{config.label!r} did not finish its handshake in {config.start_timeout_s:g} s"
    # A process without memory often hangs instead of ending: then the limit is the cause; more time does not help.
    if exhausted := link.exhausted or link.out_of_memory():
        bound = f"{bound}: {exhausted}, the limit in its entry"
        return ConnectTimeout(link.describe(bound), server=server)
    remedy = "check the command by hand, or raise start_timeout_s"
    return ConnectTimeout(link.describe(bound), server=server, remedy=remedy)


def cannot_start(server: str, config: ServerConfig, link: Link, error: Exception) -> ServerUnavailable:
    """The error of a start in which mcp, the transport or a factory raised `error`; not redacted."""
    # The transport saw the cause. What mcp raises afterwards is mostly that its streams have ended; a server that
    # answered with an error and then went away said more than how it ended.
    cause = innermost(error)
    problem = link.reason or link.trouble or describe(error)
    if link.reason and isinstance(cause, MCPError) and (cause.code, cause.message) != _CLOSED:
        problem = f"{describe(error)}; {link.reason}"
    if link.exhausted:
        problem = f"{problem}: {link.exhausted}, the limit in its entry"
    message = link.describe(f"{config.label!r} is not available: {problem}")
    # Some program answers JSON-RPC there, and knows neither `initialize` nor `server/discover`.
    not_mcp = isinstance(cause, MCPError) and cause.code == mcp.METHOD_NOT_FOUND
    unavailable = (NotAnMCPServer if not_mcp else link.start_failure)(message, server=server)
    unavailable.__cause__ = error
    return unavailable


def describe(error: BaseException) -> str:
    """The innermost cause of an error, with its class."""
    cause = innermost(error)
    return f"{type(cause).__name__}: {cause}".rstrip(": ")
