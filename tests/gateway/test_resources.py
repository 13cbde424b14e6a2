"""A server's resources are read in a lease of their own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from mcp.server.mcpserver import MCPServer

from mcp_rollout import ConfigError, Gateway, GatewayConfig

pytestmark = pytest.mark.anyio


async def test_a_resource_is_read_and_a_refusal_is_a_result(config: Callable[..., GatewayConfig]) -> None:
    server = MCPServer("library")
    server.add_tool(lambda: "its own", name="resources/read", description="A tool of the same name.")

    @server.resource("book://rules")
    def rules() -> str:
        return "No shouting."

    async with Gateway(config(library={"factory": "x:x"}), connect=lambda _, __: server) as gate:
        assert (await gate.read_resource("library", "book://rules")).text == "No shouting."
        assert (await gate.read_resource("library", "book://nowhere")).is_error
        with pytest.raises(ConfigError, match="no server 'x'"):
            await gate.read_resource("x", "book://rules")
