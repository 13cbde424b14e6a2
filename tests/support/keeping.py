"""A server in process that keeps one text for each trajectory, and says whom it has released."""

from __future__ import annotations

from typing import Any

from mcp.server.mcpserver import Context, MCPServer

KEPT: dict[str, str] = {}
RELEASED: list[str] = []
"""What each trajectory had kept when it was released."""


def keeper() -> MCPServer:
    server = MCPServer("keeper", log_level="ERROR")

    def key(ctx: Context) -> str:
        return (ctx.request_context.meta or {})["mcp-rollout/trajectory"]

    @server.tool(meta={"mcp-rollout/role": "reset"})
    def reset(task: str, seed: int, ctx: Context) -> dict[str, Any]:
        KEPT[key(ctx)] = f"{task}/{seed}"
        return {}

    @server.tool(meta={"mcp-rollout/role": "release"})
    def release(ctx: Context) -> dict[str, Any]:
        RELEASED.append(KEPT.pop(key(ctx)))
        return {}

    @server.tool()
    def put(text: str, ctx: Context) -> str:
        """Put."""
        KEPT[key(ctx)] = text
        return "stored"

    @server.tool()
    def get(ctx: Context) -> str:
        """Get."""
        return KEPT[key(ctx)]

    return server
