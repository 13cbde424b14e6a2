"""Translate between mcp's types and ours, without I/O: definitions, and the failures of requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import mcp_types as mcp
from mcp import MCPError
from mcp_types import methods
from pydantic import ValidationError

from gateway.errors import DeliveryUnknown, GatewayError, ProtocolError, RequestRefused, ServerUnavailable
from gateway.schemas.cost import too_large
from gateway.transport.delivery import Broke, Delivery, GatewayAnswer, Sent, Verdict, verdict
from gateway.types import REHEARSAL_META, ROLE_META, Role, ToolDefinition, ToolResult


@dataclass(slots=True)
class Listing:
    """What a server listed last, and what was made of it."""

    pages: list[dict[str, Any]] | None = None
    """As they were sent."""
    version: str = ""
    """Of the protocol, which decides what is valid."""
    headers: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """By tool, which arguments mcp's session mirrors into HTTP headers."""
    tools: tuple[ToolDefinition, ...] = ()
    faults: tuple[str, ...] = ()
    """One message for each tool that is left out."""


def read_tools(
    server: str, tools: Sequence[mcp.Tool], roles: Mapping[str, Role], seen: set[str] | None = None
) -> tuple[list[ToolDefinition], list[str]]:
    """Our definitions of mcp's tools, and one message for each that is left out.

    Args:
        roles: By tool name, for servers that do not mark their harness tools; it wins over the tool's own mark.
        seen: Names of the tools before these, to which these are added.
    """
    definitions: list[ToolDefinition] = []
    faults: list[str] = []
    seen = seen if seen is not None else set()
    for tool in tools:
        meta = tool.meta or {}
        mark, rehearsal = roles.get(tool.name) or meta.get(ROLE_META), meta.get(REHEARSAL_META)
        if tool.name in seen:
            faults.append(f"{tool.name}: listed twice")
        elif mark is not None and not (isinstance(mark, str) and mark in set(Role)):
            faults.append(f"{tool.name}: unknown role {mark!r}; roles: {', '.join(Role)}")
        elif not isinstance(rehearsal, Mapping | None):
            faults.append(f"{tool.name}: _meta[{REHEARSAL_META!r}] is not an object of arguments")
        elif problem := too_large(tool.input_schema) or too_large(tool.output_schema or {}):
            faults.append(f"{tool.name}: {problem}")
        else:
            seen.add(tool.name)
            hints = tool.annotations or mcp.ToolAnnotations()
            definitions.append(
                ToolDefinition(
                    server=server,
                    name=tool.name,
                    exposed_name=tool.name,
                    description=tool.description or "",
                    input_schema=tool.input_schema,
                    output_schema=tool.output_schema,
                    role=Role(mark) if mark is not None else None,
                    read_only=bool(hints.read_only_hint),
                    idempotent=bool(hints.idempotent_hint),
                    rehearsal=cast("Mapping[str, Any] | None", rehearsal),
                )
            )
    return definitions, faults


def well_formed_tools(page: Mapping[str, Any], version: str) -> tuple[list[mcp.Tool], list[str]]:
    """The well-formed tools of a raw `tools/list` page, and one message for each of the others."""
    tools: list[mcp.Tool] = []
    faults: list[str] = []
    listed = cast("list[Any]", page["tools"])
    try:
        methods.validate_server_result("tools/list", version, page)
        return mcp.ListToolsResult.model_validate(page, by_name=False).tools, []
    except ValueError:
        pass  # does not fit the protocol, or is nested deeper than mcp's models allow: which of them?
    for index, raw in enumerate(listed):
        try:
            methods.validate_server_result("tools/list", version, {**page, "tools": [raw]})
            tools.append(mcp.Tool.model_validate(raw, by_name=False))
        except ValueError as error:
            found = cast("Mapping[str, Any]", raw) if isinstance(raw, Mapping) else dict[str, Any]()
            problem = first_fault(error) if isinstance(error, ValidationError) else too_large(found) or str(error)
            faults.append(f"{found.get('name') or f'tool {index}'}: {problem}")
    return tools, faults


def first_fault(error: ValidationError) -> str:
    fault = error.errors(include_url=False, include_input=False, include_context=False)[0]
    where = ".".join(str(part) for part in fault["loc"] if part not in ("tools", 0))
    return f"{where}: {fault['msg']}" if where else fault["msg"]


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
