"""OpenEnv's MCP client: one for each trajectory, with a session of the server's.

Calls go over its HTTP path; the WebSocket beside it, for `reset` and `step`, is not opened.
"""

# Run by an interpreter of its own.
# pyright: basic, reportMissingImports=false

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from openenv.core.mcp_client import MCPToolClient

from lab.benchmarks.faults.workload import Call, Open, main

BEST = {"message_timeout_s": 2.0, "connect_timeout_s": 2.0}


@asynccontextmanager
async def connect(target: dict[str, Any], best: bool) -> AsyncGenerator[Open]:
    base = target["url"].removesuffix("/mcp")

    @asynccontextmanager
    async def opened(trajectory: str) -> AsyncGenerator[Call]:
        client = MCPToolClient(base_url=base, **(BEST if best else {}))
        try:
            if not await client.list_tools():
                raise RuntimeError("the client lists no tools")  # it swallows what its request raised

            async def call(tool: str, arguments: dict[str, Any]) -> tuple[str, bool]:
                return await client.call_tool(tool, **arguments), False  # it raises for an error result

            yield call
        finally:
            await client.close()

    yield opened


if __name__ == "__main__":
    main(connect)
