"""The Python SDK's client: one for each trajectory."""

# Run by an interpreter of its own.
# pyright: basic, reportMissingImports=false

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from mcp import Client, StdioServerParameters

from lab.benchmarks.faults.workload import Call, Open, main

BEST: dict[str, Any] = {"read_timeout_seconds": 2.0, "mode": "legacy"}


@asynccontextmanager
async def calling(server: Any, best: bool) -> AsyncGenerator[Call]:
    """Calls of one client."""
    async with Client(server, **(BEST if best else {})) as client:

        async def call(tool: str, arguments: dict[str, Any]) -> tuple[str, bool]:
            result = await client.call_tool(tool, arguments)
            return getattr(result.content[0], "text", ""), result.is_error

        yield call


@asynccontextmanager
async def connect(target: dict[str, Any], best: bool) -> AsyncGenerator[Open]:
    server: Any = target["url"] if "url" in target else StdioServerParameters(**target)
    yield lambda trajectory: calling(server, best)


if __name__ == "__main__":
    main(connect)
