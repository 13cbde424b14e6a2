"""The tools of a server as the policy is shown them, with what they cost in its prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from mcp_rollout.gateway.catalogue.hidden_text import find_hidden_in_tool
from mcp_rollout.gateway.schemas.check import schema_fault
from mcp_rollout.gateway.types import Audience, ToolDefinition, canonical_json
from mcp_rollout.rollout.doctor.report import ToolReport
from mcp_rollout.rollout.tokens.chat_template import ChatTemplate


def examine_tools(
    tools: Sequence[ToolDefinition], exposed: Mapping[str, ToolDefinition], *, counter: ChatTemplate | None
) -> tuple[ToolReport, ...]:
    """Report on each tool.

    Args:
        exposed: The tools that the policy is shown, by the server's names; others are harness tools or left out.
    """
    reports: list[ToolReport] = []
    for tool in tools:
        shown = exposed.get(tool.name)
        final = shown or tool
        reports.append(
            ToolReport(
                tool=tool.name,
                name=final.exposed_name,
                audience=str(tool.audience if tool.audience is Audience.HARNESS or shown is not None else "left out"),
                read_only=tool.read_only,
                tokens=counter.count(canonical_json(final.openai_schema())) if counter and not tool.role else None,
                described=bool(final.description.strip()),
                hidden=tuple(map(str, find_hidden_in_tool(tool))),
            )
        )
    return tuple(reports)


def schema_problems(tools: Sequence[ToolDefinition]) -> list[str]:
    """One message for each policy tool whose input schema is not a valid JSON Schema."""
    faults = {tool.name: schema_fault(cast("Mapping[str, Any]", tool.input_schema)) for tool in tools if not tool.role}
    return [f"{name}: its input schema is not valid JSON Schema: {fault}" for name, fault in faults.items() if fault]
