"""Between mcp's types and ours, without any I/O: definitions, results, and every error that a request can end with."""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, cast

import mcp_types as mcp
from mcp import MCPError
from mcp_types import methods
from pydantic import Discriminator, Tag, TypeAdapter, ValidationError

from gateway.errors import CallTimeout, DeliveryUnknown, GatewayError, ProtocolError, RequestRefused, ServerUnavailable
from gateway.schemas.effort import too_large
from gateway.transport.delivery import Delivery
from gateway.types import REWARD_META, ROLE_META, Content, ContentKind, Role, ToolDefinition, ToolResult

OVERSIZE = -32011
"""Code of the answer a transport gives itself in place of one that was longer than `max_message_bytes`."""
UNREADABLE = -32012
"""Code of the answer a transport gives itself in place of one that is no JSON-RPC response."""


Answer = mcp.CallToolResult | mcp.InputRequiredResult


def _result_type(raw: Any) -> str:
    kind = cast("Mapping[str, Any]", raw).get("resultType") if isinstance(raw, Mapping) else None
    return "input_required" if kind == "input_required" else "complete"


ANSWER: TypeAdapter[Answer] = TypeAdapter(
    Annotated[
        Annotated[mcp.CallToolResult, Tag("complete")] | Annotated[mcp.InputRequiredResult, Tag("input_required")],
        Discriminator(_result_type),
    ]
)


def read_tools(
    server: str, tools: Sequence[mcp.Tool], roles: Mapping[str, Role]
) -> tuple[list[ToolDefinition], list[str]]:
    """Our definitions of mcp's tools, and one message for each that is left out.

    Args:
        roles: By tool name, for servers that do not mark their harness tools; it wins over the tool's own mark.
    """
    definitions: list[ToolDefinition] = []
    faults: list[str] = []
    seen: set[str] = set()
    for tool in tools:
        mark = roles.get(tool.name) or (tool.meta or {}).get(ROLE_META)
        if tool.name in seen:
            faults.append(f"{tool.name}: listed twice")
        elif mark is not None and not (isinstance(mark, str) and mark in set(Role)):
            faults.append(f"{tool.name}: unknown role {mark!r}; roles: {', '.join(Role)}")
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
                )
            )
    return definitions, faults


def well_formed_tools(page: Mapping[str, Any], version: str) -> tuple[list[mcp.Tool], list[str]]:
    """The well-formed tools of a raw `tools/list` page, and one message for each of the others."""
    tools: list[mcp.Tool] = []
    faults: list[str] = []
    listed = page.get("tools")
    for index, raw in enumerate(cast("list[Any]", listed) if isinstance(listed, list) else []):
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


def read_result(result: mcp.CallToolResult, *, trusted: bool, elapsed_s: float) -> ToolResult:
    """Our form of a result. Structured content that is no object is put under `result`.

    Raises:
        ValueError: binary content that is not base64.
    """
    structured: Any = result.structured_content
    if structured is not None and not isinstance(structured, Mapping):
        structured = {"result": structured}
    content = tuple(_content(block) for block in result.content)
    if not content and structured is not None:
        # Servers should repeat structured content as text; one that does not would show the policy nothing.
        content = (Content(kind=ContentKind.TEXT, text=json.dumps(structured, ensure_ascii=False)),)
    meta = cast("Mapping[str, Any]", result.meta or {})
    return ToolResult(
        content=content,
        structured=cast("Mapping[str, Any] | None", structured),
        is_error=result.is_error,
        reward=_reward(meta) if trusted else None,
        elapsed_s=elapsed_s,
        meta=meta,
    )


def _reward(meta: Mapping[str, Any]) -> float | None:
    value = meta.get(REWARD_META)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _content(block: mcp.ContentBlock) -> Content:
    match block:
        case mcp.TextContent():
            return Content(kind=ContentKind.TEXT, text=block.text)
        case mcp.ImageContent():
            return Content(kind=ContentKind.IMAGE, data=_bytes(block.data), mime_type=block.mime_type)
        case mcp.AudioContent():
            return Content(kind=ContentKind.AUDIO, data=_bytes(block.data), mime_type=block.mime_type)
        case mcp.ResourceLink():
            text = block.description or block.title or block.name
            return Content(kind=ContentKind.RESOURCE, text=text, mime_type=block.mime_type, uri=str(block.uri))
        case mcp.EmbeddedResource(resource=inner):
            where: dict[str, Any] = {"mime_type": inner.mime_type, "uri": str(inner.uri)}
            if isinstance(inner, mcp.TextResourceContents):
                return Content(kind=ContentKind.RESOURCE, text=inner.text, **where)
            return Content(kind=ContentKind.RESOURCE, data=_bytes(inner.blob), **where)


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text)
    except binascii.Error as error:
        raise ValueError(f"content is not base64: {error}") from None


_OFF_PROTOCOL = frozenset(
    {
        OVERSIZE,
        UNREADABLE,
        mcp.METHOD_NOT_FOUND,
        mcp.INVALID_REQUEST,
        mcp.PARSE_ERROR,
        mcp.HEADER_MISMATCH,
        mcp.UNSUPPORTED_PROTOCOL_VERSION,
        mcp.URL_ELICITATION_REQUIRED,
    }
)
_NO_ANSWER = ("Connection closed", "SSE stream")
"""How mcp words its own `CONNECTION_CLOSED`; servers use that code for errors of their own."""
SESSION_ENDED = "Session terminated"
"""How mcp words HTTP 404 on a session."""


def failure(
    error: Exception, delivery: Delivery, *, down: str | None, server: str, tool: str
) -> GatewayError | ToolResult:
    """What a failed request means: an exception to raise, or an error answer for the policy to read.

    Args:
        error: What mcp raised.
        delivery: How far the request got.
        down: Why the connection is over, or None while it stands.
    """
    where = {"server": server, "tool": tool}
    if delivery.refused and delivery.rounds:
        return DeliveryUnknown(f"begun, but never finished: {delivery.refused}", **where)
    if delivery.refused:
        return ServerUnavailable(f"the request was not accepted: {delivery.refused}", **where)
    if delivery.oversize:
        return ProtocolError(delivery.lost, **where)
    if isinstance(error, MCPError):
        closed = error.code == mcp.CONNECTION_CLOSED and error.message.startswith(_NO_ANSWER)
        if error.message == SESSION_ENDED:
            delivery.session_over = True
            return ServerUnavailable("the server has ended this session and what it held", **where)
        if not (closed or delivery.lost or down):
            return _answered(error, where)
    elif isinstance(error, ValidationError):
        return ProtocolError(f"the result is off the protocol: {first_fault(error)}", **where)
    elif isinstance(error, ValueError | RuntimeError) and not down:
        return ProtocolError(str(error), **where)
    reason = down or delivery.lost or "the connection broke"
    if delivery.handed_over:
        return DeliveryUnknown(f"sent, but never answered: {reason}", **where)
    return ServerUnavailable(reason, **where)


def _answered(error: MCPError, where: Mapping[str, str]) -> GatewayError | ToolResult:
    if error.code in _OFF_PROTOCOL:
        return ProtocolError(f"{error.message} (code {error.code})", **where)
    if error.code == mcp.MISSING_REQUIRED_CLIENT_CAPABILITY:
        remedy = "environments and servers files have the keys `elicitation` and `sampling`"
        return RequestRefused(f"the server needs what is not configured here: {error.message} ({remedy})", **where)
    if error.code == mcp.REQUEST_TIMEOUT:
        return CallTimeout(f"the server gave up: {error.message}", **where)
    # Invalid arguments, and what handlers throw: many servers say no this way instead of with `isError`.
    return ToolResult.error(error.message)
