"""Whether a tool reaches the chat template as its server sent it, and what it costs there."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from mcp_rollout.gateway.catalogue.hidden_text import find_hidden_in_tool
from mcp_rollout.gateway.catalogue.tool_config import lock_entries, read_lock, write_lock
from mcp_rollout.gateway.differences import differences
from mcp_rollout.gateway.schemas.check import schema_fault
from mcp_rollout.gateway.types import Audience, ToolDefinition, canonical_json
from mcp_rollout.rollout.doctor.report import ToolReport
from mcp_rollout.rollout.tokens.chat_template import ChatTemplate


def examine_tools(
    raw: Sequence[Any],
    tools: Sequence[ToolDefinition],
    exposed: Mapping[str, ToolDefinition],
    *,
    counter: ChatTemplate | None,
) -> tuple[ToolReport, ...]:
    """Compare the tools as the server sent them with the tools as the policy is shown them.

    Args:
        raw: The server's listing, unparsed.
        tools: The same tools as the gateway parses them.
        exposed: The tools that the policy is shown, by the server's names; others are harness tools or left out.
    """
    objects = [cast("Mapping[str, Any]", tool) for tool in raw if isinstance(tool, Mapping)]
    sent = {tool["name"]: tool for tool in objects if "name" in tool}
    rendered = _through_the_lock(tools)
    reports: list[ToolReport] = []
    for tool in tools:
        shown = exposed.get(tool.name)
        audience = tool.audience if tool.audience is Audience.HARNESS or shown is not None else "left out"
        final = shown or tool
        difference = "" if tool.role else _difference(sent.get(tool.name), rendered.get(tool.name, tool))
        reports.append(
            ToolReport(
                tool=tool.name,
                name=final.exposed_name,
                audience=str(audience),
                read_only=tool.read_only,
                faithful=not difference,
                difference=difference,
                tokens=counter.count(canonical_json(final.openai_schema())) if counter and not tool.role else None,
                described=bool(final.description.strip()),
                hidden=tuple(map(str, find_hidden_in_tool(tool))),
            )
        )
    return tuple(reports)


def _through_the_lock(tools: Sequence[ToolDefinition]) -> dict[str, ToolDefinition]:
    """Write the tools to a lock and read them back, as verl does."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "tools.yaml"
        write_lock(path, lock_entries({"server": tuple(tools)}, environment=None, source="doctor"))
        return {entry.definition.name: entry.definition for entry in read_lock(path)}


def _difference(sent: Mapping[str, Any] | None, shown: ToolDefinition) -> str:
    if sent is None:
        return "the server does not list it under this name"
    first = next(
        differences(
            {"input schema": sent.get("inputSchema"), "description": sent.get("description") or ""},
            {"input schema": shown.input_schema, "description": shown.description},
        ),
        None,
    )
    return "{}: sent {}, shown {}".format(*first.shown) if first else ""


def schema_problems(tools: Sequence[ToolDefinition]) -> list[str]:
    """One message for each policy tool whose input schema is not a valid JSON Schema."""
    faults = {tool.name: schema_fault(cast("Mapping[str, Any]", tool.input_schema)) for tool in tools if not tool.role}
    return [f"{name}: its input schema is not valid JSON Schema: {fault}" for name, fault in faults.items() if fault]
