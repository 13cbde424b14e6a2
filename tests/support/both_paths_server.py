"""A server of many kinds of tools, served by the kit or by the SDK alone: `both_paths_server.py kit|sdk [HOST:PORT]`."""

from __future__ import annotations

import sys
from typing import Any, Literal

import anyio
from mcp.server.mcpserver import Context, MCPServer
from mcp.shared.exceptions import MCPError
from mcp_types import (
    Annotations,
    CallToolResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ImageContent,
    InputRequiredResult,
    TextContent,
)
from pydantic import BaseModel, Field

from mcp_servers.kit import Harness, ToolError, main


class Point(BaseModel):
    x: float
    y: float | None = None
    label: str = Field(default="", alias="the-label")


class Answer(BaseModel):
    name: str


def create_server() -> MCPServer:
    server = MCPServer("both", version="1.2", log_level="CRITICAL")
    harness = Harness(server, lambda task, seed: [task, seed], max_trajectories=8)
    waiting: dict[str, anyio.Event] = {}

    @server.tool()
    def add(a: int, b: int = 1) -> int:
        return a + b

    @server.tool()
    async def point(at: Point, kind: Literal["a", "b"] = "a") -> Point:
        return at

    @server.tool()
    async def anything(value: Any) -> dict[str, Any]:
        return {"value": value, "none": None}

    @server.tool()
    async def listing(texts: list[str]) -> list[str]:
        return texts

    @server.tool()
    async def unstructured(text: str) -> Any:
        return text

    @server.tool()
    async def image() -> ImageContent:
        return ImageContent(type="image", data="AAAA", mime_type="image/png")

    @server.tool()
    async def own_result(reward: float | None = None, error: bool = False) -> CallToolResult:
        block = TextContent(type="text", text="é\u2028", annotations=Annotations(priority=0.5))
        meta = None if reward is None else {"mcp-rollout/reward": reward}
        return CallToolResult(content=[block], structured_content={"n": {"m": None}}, is_error=error, _meta=meta)

    @server.tool()
    async def fails(how: str) -> str:
        if how == "tool":
            raise ToolError("no: é")
        if how == "protocol":
            raise MCPError(code=-32050, message="of the protocol", data={"a": 1})
        if how == "params":
            raise MCPError(code=-32602, message="of the params")
        raise RuntimeError("secret")

    @server.tool()
    async def mismatch() -> int:
        return "no number"  # type: ignore[return-value]

    @server.tool()
    async def reports(steps: int, ctx: Context) -> str:
        for step in range(steps):
            await ctx.report_progress(step, steps, f"step {step}")
        return f"{ctx.request_id} {ctx.protocol_version} {ctx.client_capabilities is not None}"

    @server.tool()
    async def mine(ctx: Context) -> str:
        return repr(harness.world(ctx))

    @server.tool()
    async def asks(ctx: Context) -> str:
        result = await ctx.elicit("Who?", Answer)
        return f"{result.action} {getattr(result, 'data', None)}"

    @server.tool()
    async def rounds(ctx: Context) -> str | InputRequiredResult:
        if ctx.input_responses:
            return f"{ctx.request_state} {sorted(ctx.input_responses)}"
        params = ElicitRequestFormParams(message="Who?", requested_schema=Answer.model_json_schema())
        return InputRequiredResult(input_requests={"q": ElicitRequest(params=params)}, request_state="s")

    @server.tool()
    async def waits(key: str) -> str:
        """Returns once `wakes` is called; says what happened to it."""
        event = waiting[key] = anyio.Event()
        try:
            await event.wait()
        except BaseException:
            waiting[key + " cancelled"] = event
            raise
        return "woken"

    @server.tool()
    async def wakes(key: str) -> bool:
        """Whether a call waits under the key, which it ends."""
        if key in waiting:
            waiting[key].set()
        return key in waiting

    return server


if __name__ == "__main__":
    made = create_server()
    if sys.argv[1] == "kit":
        main(made, arguments=["--http", sys.argv[2]] if len(sys.argv) > 2 else [])
    elif len(sys.argv) > 2:
        host, _, port = sys.argv[2].rpartition(":")
        made.run("streamable-http", host=host, port=int(port))
    else:
        made.run("stdio")
