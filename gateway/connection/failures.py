"""What a failed request or a failed start means: an error with cause and remedy, or an answer. No I/O."""

from __future__ import annotations

from collections.abc import Mapping

import mcp_types as mcp
from mcp import MCPError
from pydantic import ValidationError

from mcp_rollout.gateway.config.models import ServerConfig
from mcp_rollout.gateway.errors import (
    ConnectTimeout,
    DeliveryUnknown,
    GatewayError,
    NotAnMCPServer,
    ProtocolError,
    RequestRefused,
    ServerUnavailable,
    innermost,
)
from mcp_rollout.gateway.server_events import cut_text
from mcp_rollout.gateway.transport.delivery import Broke, Delivery, GatewayAnswer, Sent, Verdict, verdict
from mcp_rollout.gateway.transport.http_answer import StatusFault
from mcp_rollout.gateway.transport.link import Link
from mcp_rollout.gateway.transport.tool_definitions import first_fault
from mcp_rollout.gateway.types import ToolResult

_PASSING = frozenset({408, 425, 429})
"""HTTP statuses of a client's error that say nothing about the next request."""
_OFF_PROTOCOL = frozenset(
    {
        mcp.METHOD_NOT_FOUND,
        mcp.PARSE_ERROR,
        mcp.HEADER_MISMATCH,
        mcp.UNSUPPORTED_PROTOCOL_VERSION,
        mcp.URL_ELICITATION_REQUIRED,
    }
)
"""Codes that the protocol reserves for requests that reached no tool. Any other error of a server is its tool's."""


def failure(
    error: Exception, delivery: Delivery, *, down: str | None, repeatable: bool, server: str, tool: str
) -> GatewayError | ToolResult:
    """What a failed request means: an exception to raise, or an error answer for the policy to read.

    Whether a server answered follows from what the transport noted and from the type of `error`, never from the text or
    code of a message, both of which servers choose freely.

    Args:
        error: What mcp raised.
        delivery: What the transport noted about the request.
        down: Why the connection is down; None while it is up.
        repeatable: Whether running the request twice is harmless.
    """
    where = {"server": server, "tool": tool}
    if delivery.broke is None and not down:
        if isinstance(error, MCPError):
            if isinstance(error.data, GatewayAnswer):
                return ProtocolError(error.data.problem, **where)
            return _answered(error, where)
        if isinstance(error, ValidationError):
            return ProtocolError(f"the result does not fit the protocol: {first_fault(error)}", **where)
        if isinstance(error, ValueError | RuntimeError):
            return ProtocolError(str(error), **where)
    broke = delivery.broke or Broke.LINE
    # Of a broken line the link knows the cause, such as a signal; of anything else the transport that met it.
    reason = (down if broke is Broke.LINE else None) or delivery.reason or "the connection broke"
    if broke is Broke.CONTENT:
        return ProtocolError(reason, **where)
    if delivery.sent is Sent.NOTHING:
        broken: GatewayError = ServerUnavailable(reason, **where)
    elif broke in (Broke.SESSION, Broke.REJECTED) and delivery.sent is Sent.REQUEST:
        broken = ServerUnavailable(reason, **where)
    else:
        state = "begun, but never finished" if delivery.sent is Sent.ROUNDS else "sent, but never answered"
        broken = DeliveryUnknown(f"{state}: {reason}", **where)
    broken.may_resend = verdict(delivery.sent, broke, repeatable=repeatable) is Verdict.RESEND
    return broken


def as_error(outcome: GatewayError | ToolResult, *, server: str, tool: str) -> GatewayError:
    """The outcome of a request that is no call of a policy, to which a refusal is an error, too."""
    return outcome if isinstance(outcome, GatewayError) else ProtocolError(outcome.text, server=server, tool=tool)


def refuses(error: Exception, delivery: Delivery) -> bool:
    """Whether a request failed because the server answered that it does not take it, by an error or an HTTP status."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, StatusFault):
            said = cause.error is not None or cause.status < 500
            return said and cause.broke is not Broke.SESSION and cause.status not in _PASSING
        cause = cause.__cause__ or cause.__context__
    return delivery.broke is None and isinstance(error, MCPError) and not isinstance(error.data, GatewayAnswer)


def _answered(error: MCPError, where: Mapping[str, str]) -> GatewayError | ToolResult:
    if error.code in _OFF_PROTOCOL:
        return ProtocolError(f"{error.message} (code {error.code})", **where)
    if error.code == mcp.MISSING_REQUIRED_CLIENT_CAPABILITY:
        remedy = "environments and servers files have the keys `elicitation` and `sampling`"
        return RequestRefused(f"the server needs what is not configured here: {error.message} ({remedy})", **where)
    # Invalid arguments, and what handlers throw: many servers say no this way instead of with `isError`.
    return ToolResult.error(error.message)


_CLOSED = (mcp.CONNECTION_CLOSED, "Connection closed")
"""What mcp raises for a request whose streams ended."""
_MOST_LINES, _MOST_CHARACTERS = 20, 4000
"""Of the reason why a server did not start."""


def not_in_time(server: str, config: ServerConfig, link: Link, abandoned: str | None) -> ServerUnavailable:
    """The error of a start that was cut.

    Args:
        abandoned: Why the gateway gave the start up; None if it exceeded `start_timeout_s`.
    """
    if abandoned is not None:
        return ServerUnavailable(f"given up during its handshake: {abandoned}", server=server)
    bound = f"{config.label!r} did not finish its handshake in {config.start_timeout_s:g} s"
    # A process without memory often hangs instead of ending: then the limit is the cause; more time does not help.
    if exhausted := link.exhausted or link.out_of_memory():
        bound = f"{bound}: {exhausted}, the limit in its entry"
        return ConnectTimeout(link.describe(bound), server=server)
    remedy = "check the command by hand, raise start_timeout_s, or try era: handshake"
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
    message = link.describe(f"{config.label!r} is not available: {_cut(link.redact(problem))}")
    # Some program answers JSON-RPC there, and knows neither `initialize` nor `server/discover`.
    not_mcp = isinstance(cause, MCPError) and cause.code == mcp.METHOD_NOT_FOUND
    unavailable = (NotAnMCPServer if not_mcp else link.start_failure)(message, server=server)
    unavailable.__cause__ = error
    return unavailable


def _cut(problem: str) -> str:
    """The beginning of a text that a server may have chosen; redacted before, since half a secret is not found."""
    lines = problem.splitlines()
    more = [f"…[{len(lines) - _MOST_LINES} lines cut]"] if len(lines) > _MOST_LINES else []
    return cut_text("\n".join([*lines[:_MOST_LINES], *more]), _MOST_CHARACTERS)


def ended_at_probe(error: Exception, link: Link) -> bool:
    """Whether a start may have failed because the program ends where its first message is not `initialize`."""
    cause = innermost(error)
    return bool(link.reason) and not (isinstance(cause, MCPError) and (cause.code, cause.message) != _CLOSED)


def describe(error: BaseException) -> str:
    """The innermost cause of an error, with its class."""
    cause = innermost(error)
    return f"{type(cause).__name__}: {cause}".rstrip(": ")
