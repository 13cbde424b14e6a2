"""Servers that ask within tools, prompts and resources, and clients that answer, where each speaks either era."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import mcp_types as mcp
import pytest
from mcp import Client, MCPError
from mcp.server.mcpserver import MCPServer
from raw_clients import ENVELOPE
from served import RawClient, served
from serving import serving

from mcp_rollout import GatewayConfig

pytestmark = pytest.mark.anyio
MODERN = "2026-07-28"
SERVER = str(Path(__file__).parents[2] / "support" / "one_era_server.py")


def config(era: str, *more: str, **bounds: Any) -> GatewayConfig:
    entry = {"command": sys.executable, "args": ["-I", "-S", SERVER, era, *more], "required": True, "scope": "process"}
    return GatewayConfig.model_validate({"servers": {era: entry}, **bounds})


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


@pytest.mark.parametrize("mode", ["legacy", MODERN])
async def test_lists_and_resources_of_a_server_of_the_handshakes_era_reach_clients_of_both(mode: str) -> None:
    server = MCPServer("shelf", log_level="CRITICAL")
    server.add_tool(lambda: "x", name="any", description="x")

    @server.prompt()
    def greet() -> str:
        return "Hello."

    @server.resource("shelf://rules")
    def rules() -> str:
        return "Hush."

    del greet, rules  # registered
    async with serving(server, "http-handshake") as entry:
        async with served(GatewayConfig.model_validate({"servers": {"shelf": entry}})) as running:
            async with Client(running.url, mode=mode, cache=None) as user:
                assert [each.name for each in (await user.list_prompts()).prompts] == ["greet"]
                assert [str(each.uri) for each in (await user.list_resources()).resources] == ["shelf://rules"]
                assert (await user.list_resource_templates()).resource_templates == []
                assert (await user.read_resource("shelf://rules")).contents[0].text == "Hush."


async def test_a_server_of_the_handshakes_era_is_told_that_a_client_of_the_other_answers_no_questions() -> None:
    async with served(config("old")) as running, Client(running.url, mode=MODERN, cache=None) as user:
        assert "does not take elicitation/create" in (await user.call_tool("ask_twice", {})).content[0].text


async def test_a_client_of_the_handshakes_era_that_answers_no_questions_gets_an_error() -> None:
    async with served(config("new")) as running, Client(running.url, mode="legacy", cache=None) as user:
        for asking in (user.call_tool("ask_twice", {}), user.get_prompt("greet"), user.read_resource("test://names")):
            with pytest.raises(MCPError, match="does not take elicitation/create"):
                await asking


@pytest.mark.parametrize("era", ["old", "new"])
async def test_questions_count_as_requests_of_their_call(era: str) -> None:
    async with served(config(era, max_requests_per_call=1)) as running:
        async with Client(running.url, mode="legacy", cache=None, elicitation_callback=elicited) as user:
            for _ in range(2):
                try:
                    said = (await user.call_tool("ask_twice", {})).content[0].text
                except MCPError as error:
                    said = str(error)
                assert "a call may make 1 requests (max_requests_per_call)" in said


async def test_a_server_that_never_comes_to_a_result_breaks_the_protocol() -> None:
    async with served(config("new", "endless")) as running, Client(running.url, mode="legacy", cache=None) as user:
        with pytest.raises(MCPError, match="no result after 10 rounds") as caught:
            await user.call_tool("ask_twice", {})
        assert caught.value.error.data["mcp-rollout/failure"]["code"] == "protocol_error"


async def test_each_round_of_questions_has_a_state_and_so_a_time_of_its_own() -> None:
    headers = {"accept": "application/json, text/event-stream", "mcp-protocol-version": MODERN}
    headers |= {"mcp-method": "tools/call", "mcp-name": "ask_twice"}
    async with served(config("old")) as running:

        async def asked(**more: Any) -> dict[str, Any]:
            params = {"name": "ask_twice", "arguments": {}, "_meta": ENVELOPE, **more}
            message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
            return (await RawClient(running.url).post(message, **headers)).json()

        result, states = (await asked())["result"], list[str]()
        while result["resultType"] == "input_required":
            states.append(result["requestState"])
            given = {"action": "accept", "content": {"name": "Ada"}}
            answers = dict.fromkeys(result["inputRequests"], given)
            result = (await asked(requestState=states[-1], inputResponses=answers))["result"]
        assert result["content"][0]["text"] == "Ada Ada" and len(set(states)) == 2
        assert "requestState" in (await asked(requestState=states[0], inputResponses={}))["error"]["message"]


async def test_a_client_that_cancels_its_call_cancels_it_at_a_server_of_the_handshakes_era() -> None:
    server, started, stopped = MCPServer("waiting", log_level="CRITICAL"), anyio.Event(), anyio.Event()

    @server.tool()
    async def greet() -> str:
        return "Hello."

    @server.tool()
    async def wait() -> str:
        started.set()
        try:
            await anyio.sleep_forever()
        finally:
            stopped.set()
        return ""

    del greet, wait  # registered
    async with serving(server, "http-handshake") as entry:
        made = GatewayConfig.model_validate({"servers": {"waiting": {**entry, "call_timeout_s": 600}}})
        async with served(made) as running, Client(running.url, mode=MODERN, cache=None) as user:
            world = {"mcp-rollout/world": ((await user.call_tool("greet", {})).meta or {})["mcp-rollout/world"]}
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(partial(user.call_tool, "wait", {}, meta=world))
                await started.wait()
                tasks.cancel_scope.cancel()
            with anyio.fail_after(60):
                await stopped.wait()
