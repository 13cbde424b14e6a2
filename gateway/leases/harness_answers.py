"""What a harness tool is sent, and what its answer says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from gateway.types import ToolDefinition, ToolResult


def known_arguments(tool: ToolDefinition, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Those of `arguments` that the tool's schema knows."""
    properties = tool.input_schema.get("properties")
    if not isinstance(properties, Mapping):
        return arguments
    return {name: value for name, value in arguments.items() if name in properties}


def structured_answer(result: ToolResult) -> Mapping[str, Any] | None:
    """The object that a harness tool answered with, structured or as JSON text; None where there is none."""
    structured: Any = result.structured
    if structured is None:
        try:
            structured = json.loads(result.text)
        except (ValueError, RecursionError):
            return None
    if not isinstance(structured, Mapping):
        return None
    answer = cast("Mapping[str, Any]", structured)
    # Servers with untyped return values put the object under `result`.
    inner = answer.get("result")
    return cast("Mapping[str, Any]", inner) if len(answer) == 1 and isinstance(inner, Mapping) else answer
