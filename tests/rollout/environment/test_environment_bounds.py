"""An environment says itself how long its servers may take to make a world and to clear it away."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from mcp.server.mcpserver import MCPServer
from worlds import environment, opened

from mcp_rollout.gateway.errors import CallTimeout

pytestmark = pytest.mark.anyio


def slow(role: str) -> MCPServer:
    server = MCPServer("slow", log_level="ERROR")

    @server.tool(meta={"mcp-rollout/role": role})
    async def never() -> dict[str, Any]:
        await anyio.sleep_forever()
        return {}

    @server.tool()
    def look() -> str:
        return "here"

    return server


async def test_a_reset_may_take_as_long_as_the_environment_says() -> None:
    servers = {"slow": slow("reset")}
    async with opened(environment(servers, reset_timeout_s=0.1), servers) as gateway:
        with anyio.fail_after(10), pytest.raises(CallTimeout, match=r"slow/never: no answer within 0.1 s"):
            async with gateway.lease(trajectory="t", task="", seed=1):
                pass
