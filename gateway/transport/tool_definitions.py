"""Make definitions of the tools that a server lists, and a message of each that cannot be used. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import mcp_types as mcp
from mcp_types import methods
from pydantic import ValidationError

from mcp_rollout.gateway.schemas.extent import too_large
from mcp_rollout.gateway.types import REHEARSAL_META, ROLE_META, Role, ToolDefinition

_PAGE = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
"""What a page has besides its tools, which no fault of its own makes unusable."""


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


def well_formed_tools(listed: list[Any], version: str) -> tuple[list[mcp.Tool], list[str]]:
    """The well-formed tools of those that a server listed, and one message for each of the others."""
    tools: list[mcp.Tool] = []
    faults: list[str] = []
    try:
        page = {**_PAGE, "tools": listed}
        methods.validate_server_result("tools/list", version, page)
        return mcp.ListToolsResult.model_validate(page, by_name=False).tools, []
    except ValueError:
        pass  # does not fit the protocol, or is nested deeper than mcp's models allow: which of them?
    for index, raw in enumerate(listed):
        try:
            methods.validate_server_result("tools/list", version, {**_PAGE, "tools": [raw]})
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
