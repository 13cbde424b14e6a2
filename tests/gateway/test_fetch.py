"""A server's resources and prompts are read in a lease of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.prompts.base import AssistantMessage, UserMessage

from mcp_rollout import ConfigError, Gateway, GatewayConfig
from mcp_rollout.gateway.types import GET_PROMPT, READ_RESOURCE

pytestmark = pytest.mark.anyio


async def test_resources_and_prompts_are_read_and_refusals_are_results(config: Callable[..., GatewayConfig]) -> None:
    server = MCPServer("library")
    server.add_tool(lambda: "its own", name=READ_RESOURCE, description="A tool of the same name.")

    @server.resource("book://rules")
    def rules() -> str:
        return "No shouting."

    @server.prompt()
    def talk(who: str) -> list[Any]:
        return [UserMessage(f"Hello, {who}."), AssistantMessage("Hush.")]

    async with Gateway(config(library={"factory": "x:x"}), connect=lambda _, __: server) as gate:
        assert (await gate.fetch("library", READ_RESOURCE, {"uri": "book://rules"})).text == "No shouting."
        got = await gate.fetch("library", GET_PROMPT, {"name": "talk", "arguments": {"who": "Emma"}})
        assert got.text == "user: Hello, Emma.\nassistant: Hush."
        assert (await gate.fetch("library", READ_RESOURCE, {"uri": "book://nowhere"})).is_error
        with pytest.raises(ConfigError, match="no server 'x'"):
            await gate.fetch("x", READ_RESOURCE, {"uri": "book://rules"})
