"""Servers that ask within tools, prompts and resources, and clients that answer, where each speaks either era."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import mcp_types as mcp
import pytest
from mcp import Client, MCPError
from served import served

from gateway import GatewayConfig

pytestmark = pytest.mark.anyio
MODERN = "2026-07-28"
SERVER = str(Path(__file__).parents[2] / "support" / "one_era_server.py")


def config(era: str) -> GatewayConfig:
    entry = {"command": sys.executable, "args": ["-I", "-S", SERVER, era], "required": True, "scope": "process"}
    return GatewayConfig.model_validate({"servers": {era: entry}})


async def elicited(context: Any, params: Any) -> mcp.ElicitResult:
    assert params.message == "Who?" and params.requested_schema["properties"].keys() == {"name"}
    return mcp.ElicitResult(action="accept", content={"name": "Ada"})


@pytest.mark.parametrize("mode", ["legacy", MODERN])
@pytest.mark.parametrize("era", ["old", "new"])
async def test_questions_within_tools_prompts_and_resources_reach_the_client(era: str, mode: str) -> None:
    async with served(config(era)) as running:
        async with Client(running.url, mode=mode, cache=None, elicitation_callback=elicited) as user:
            assert (await user.call_tool("ask_twice", {})).content[0].text == "Ada Ada"
            assert (await user.get_prompt("greet")).messages[0].content.text == "Ada Ada"
            assert (await user.read_resource("test://names")).contents[0].text == "Ada Ada"


async def test_a_server_of_the_handshakes_era_is_told_that_a_client_of_the_other_answers_no_questions() -> None:
    async with served(config("old")) as running, Client(running.url, mode=MODERN, cache=None) as user:
        assert "does not take elicitation/create" in (await user.call_tool("ask_twice", {})).content[0].text


async def test_a_client_of_the_handshakes_era_that_answers_no_questions_gets_an_error() -> None:
    async with served(config("new")) as running, Client(running.url, mode="legacy", cache=None) as user:
        for asking in (user.call_tool("ask_twice", {}), user.get_prompt("greet"), user.read_resource("test://names")):
            with pytest.raises(MCPError, match="does not take elicitation/create"):
                await asking
