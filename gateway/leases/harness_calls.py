"""Arguments and results of harness tools, and the user's answers to elicitations."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

from mcp_rollout.gateway.connection.in_flight import Question
from mcp_rollout.gateway.errors import HarnessError
from mcp_rollout.gateway.schemas.check import check_value
from mcp_rollout.gateway.types import ToolDefinition, ToolResult


def known_arguments(tool: ToolDefinition, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments that the tool's schema lists; a foreign tool with a role may take fewer than the contract has."""
    properties = tool.input_schema.get("properties")
    if not isinstance(properties, Mapping):
        return arguments
    return {name: value for name, value in arguments.items() if name in properties}


def structured_answer(result: ToolResult) -> Mapping[str, Any] | None:
    """The object that a harness tool returned, as structured content or as JSON text; None if there is none."""
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


class UserElicitation:
    """Passes servers' elicitations to the `elicit` tool of the user server.

    Args:
        ask: Calls the `elicit` tool; returns its structured answer.
        server: The user server's name.
    """

    def __init__(self, ask: Callable[[dict[str, Any]], Awaitable[Mapping[str, Any]]], server: str) -> None:
        self._ask, self._server = ask, server
        self._asked = 0

    async def answer(self, question: Question) -> dict[str, Any]:
        """The user's answer, as the `elicitation/create` request wants it. Raises `GatewayError`."""
        schema = cast("Mapping[str, Any]", question.params.get("requestedSchema") or {})
        # Numbered from 1 and counted before the call, so that a resend keeps its number and the user can recognise it.
        self._asked += 1
        answer = await self._ask(
            {
                "seq": self._asked,
                "message": question.params["message"],
                "schema": schema,
                "server": question.server,
                "tool": question.tool,
            }
        )
        action, content = answer.get("action"), answer.get("content")
        if action not in ("accept", "decline", "cancel"):
            raise HarnessError(f"elicit answered with the action {action!r}", server=self._server)
        if action != "accept":
            return {"action": action}
        if faults := check_value(schema, content, subject=f"{self._server}/elicit"):
            raise HarnessError(f"elicit's answer does not fit the schema: {'; '.join(faults)}", server=self._server)
        return {"action": action, "content": content}
