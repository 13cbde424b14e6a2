"""What a failed request means: an exception to raise, or an error answer for the policy to read. No I/O."""

from __future__ import annotations

from collections.abc import Mapping

import mcp_types as mcp
from mcp import MCPError
from pydantic import ValidationError

from gateway.errors import DeliveryUnknown, GatewayError, ProtocolError, RequestRefused, ServerUnavailable
from gateway.transport.delivery import Broke, Delivery, GatewayAnswer, Sent, Verdict, verdict
from gateway.transport.tool_definitions import first_fault
from gateway.types import ToolResult

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


def _answered(error: MCPError, where: Mapping[str, str]) -> GatewayError | ToolResult:
    if error.code in _OFF_PROTOCOL:
        return ProtocolError(f"{error.message} (code {error.code})", **where)
    if error.code == mcp.MISSING_REQUIRED_CLIENT_CAPABILITY:
        remedy = "environments and servers files have the keys `elicitation` and `sampling`"
        return RequestRefused(f"the server needs what is not configured here: {error.message} ({remedy})", **where)
    # Invalid arguments, and what handlers throw: many servers say no this way instead of with `isError`.
    return ToolResult.error(error.message)
