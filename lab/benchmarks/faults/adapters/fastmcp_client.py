"""FastMCP's client: one for each trajectory."""

# Run by an interpreter of its own.
# pyright: basic, reportMissingImports=false

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from fastmcp import Client
from fastmcp.client.transports import StdioTransport, StreamableHttpTransport

from lab.benchmarks.faults.workload import Call, Open, main

BEST: dict[str, Any] = {"timeout": 2, "init_timeout": 5, "mode": "legacy"}


@asynccontextmanager
async def connect(target: dict[str, Any], best: bool) -> AsyncGenerator[Open]:
    @asynccontextmanager
    async def opened(trajectory: str) -> AsyncGenerator[Call]:
        if "url" in target:
            transport: Any = StreamableHttpTransport(target["url"])
        else:
            transport = StdioTransport(**target, **({"keep_alive": False} if best else {}))
        async with Client(transport, **(BEST if best else {})) as client:

            async def call(tool: str, arguments: dict[str, Any]) -> tuple[str, bool]:
                result = await client.call_tool(tool, arguments, raise_on_error=False)
                return result.content[0].text, result.is_error

            yield call

    yield opened


if __name__ == "__main__":
    main(connect)
