"""Tools of many kinds, served by the kit or by the SDK alone: `both_paths_server.py kit|sdk [HOST:PORT]`."""

from __future__ import annotations

import asyncio
import os
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

from mcp_rollout.mcp_servers.kit import Harness, ToolError, main
from mcp_rollout.mcp_servers.kit.direct.calls import DirectCalls


class Point(BaseModel):
    x: float
    y: float | None = None
    label: str = Field(default="", alias="the-label")


class Abnormal(BaseException):
    """As extensions in other languages raise."""


class Answer(BaseModel):
    name: str


def create_server() -> MCPServer:
    server = MCPServer("both", version="1.2", log_level="CRITICAL")
    harness = Harness(server, lambda task, seed: [task, seed], max_trajectories=8)
    waiting = set[str]()

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
    async def repeats(text: str, times: int) -> str:
        return text * times

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
        if how == "cancelled":
            own = asyncio.get_running_loop().create_future()
            own.cancel()
            await own
        if how == "abnormal":
            raise Abnormal
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
    async def logs(ctx: Context) -> str:
        await ctx.session.send_log_message("info", "é", logger="l", related_request_id=ctx.request_id)
        await ctx.session.send_log_message("error", {"n": None}, related_request_id=ctx.request_id)
        return "done"

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
        """Waits until it is cancelled."""
        waiting.add(key)
        try:
            await anyio.sleep_forever()
        finally:
            waiting.discard(key)

    @server.tool()
    async def is_waiting(key: str) -> bool:
        return key in waiting

    @server.tool()
    async def prints(text: str) -> str:
        """Writes to what it takes for standard output, and reads what it takes for standard input."""
        print(text, flush=True)  # noqa: T201 - the point
        os.write(1, text.encode())
        return os.read(0, 10).decode()

    @server.tool()
    async def headers(name: str, ctx: Context) -> str:
        return str((ctx.headers or {}).get(name))

    @server.tool()
    async def how_many_were_direct() -> int:
        return COUNTED["direct"]

    return server


COUNTED = {"direct": 0}


def count_direct_calls() -> None:
    """Counts the calls that take the direct path, without another change."""
    answer = DirectCalls.answer

    async def counted(self: DirectCalls, *given: Any) -> dict[str, Any]:
        COUNTED["direct"] += 1
        return await answer(self, *given)

    DirectCalls.answer = counted  # type: ignore[method-assign]


if __name__ == "__main__":
    count_direct_calls()
    made = create_server()
    if sys.argv[1] == "kit":
        main(made, arguments=["--http", sys.argv[2]] if len(sys.argv) > 2 else [])
    elif len(sys.argv) > 2:
        host, _, port = sys.argv[2].rpartition(":")
        made.run("streamable-http", host=host, port=int(port))
    else:
        made.run("stdio")
