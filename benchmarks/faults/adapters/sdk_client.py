"""The Python SDK's client: one for each trajectory."""

# Run by an interpreter of its own.
# pyright: basic, reportMissingImports=false

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from mcp import Client, StdioServerParameters

from benchmarks.faults.workload import Call, Open, main

BEST: dict[str, Any] = {"read_timeout_seconds": 2.0, "mode": "legacy"}


@asynccontextmanager
async def connect(target: dict[str, Any], best: bool) -> AsyncGenerator[Open]:
    server: Any = target["url"] if "url" in target else StdioServerParameters(**target)

    @asynccontextmanager
    async def opened(trajectory: str) -> AsyncGenerator[Call]:
        async with Client(server, **(BEST if best else {})) as client:

            async def call(tool: str, arguments: dict[str, Any]) -> tuple[str, bool]:
                result = await client.call_tool(tool, arguments)
                (content,) = result.content
                return getattr(content, "text", ""), result.is_error

            yield call

    yield opened


if __name__ == "__main__":
    main(connect)
