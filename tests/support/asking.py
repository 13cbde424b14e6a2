"""Tools called by a bare MCP client, for one trajectory or another."""

from __future__ import annotations

from typing import Any

from mcp import Client
from mcp_types import CallToolResult


async def ask(client: Client, tool: str, trajectory: str = "a", /, **arguments: Any) -> CallToolResult:
    return await client.call_tool(tool, arguments, meta={"mcp-rollout/trajectory": trajectory})  # type: ignore[arg-type]


async def answer(client: Client, tool: str, trajectory: str = "a", /, **arguments: Any) -> dict[str, Any]:
    result = await ask(client, tool, trajectory, **arguments)
    assert not result.is_error and result.structured_content is not None, result.content
    return result.structured_content
