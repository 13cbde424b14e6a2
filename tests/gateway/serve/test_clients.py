"""A served gateway as an ordinary MCP client sees it: the policy's tools, and a world of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, MCPError
from served import OTHER_TOKEN, TOKEN, RawClient, served, until_free

from mcp_rollout import Gateway, GatewayConfig, GatewayError
from mcp_rollout.gateway.serve.client_gateways import ClientGateways, Era

Entries = Callable[..., dict[str, Any]]
Config = Callable[..., GatewayConfig]
pytestmark = pytest.mark.anyio
MODERN = "2026-07-28"
ACCEPT = {"accept": "application/json, text/event-stream"}
CHECKING = """
from mcp.server.mcpserver import MCPServer
server = MCPServer("checking")
@server.tool()
def double(number: int) -> str:
    return str(2 * number)
server.run("stdio")
"""


def text(result: Any) -> str:
    return result.content[0].text


async def test_each_session_of_the_handshake_era_has_a_world_of_its_own(mini: Entries, config: Config) -> None:
    made = config(store=mini("put", "get", "pid", "reset", "score", scope="process"))
    async with served(made) as running:
        async with Client(running.url, mode="legacy") as one, Client(running.url, mode="legacy") as two:
            assert [tool.name for tool in (await one.list_tools()).tools] == ["put", "get", "pid"]
            assert running.leases == 2
            await one.call_tool("put", {"text": "plum"})
            assert text(await one.call_tool("get", {})) == "plum" != text(await two.call_tool("get", {}))
            for guess in ("reset", "score", "store__reset"):
                refused = await one.call_tool(guess, {"task": "t", "seed": 1})
                assert refused.is_error and text(refused) == f"Unknown tool: {guess}"
        await until_free(running)


async def test_the_worlds_task_names_schemas_and_fixed_arguments_are_as_configured(
    mini: Entries, config: Config
) -> None:
    tools = {"change": {"echo": {"name": "say", "description": "Say it.", "fixed": {"text": "fixed"}}}}
    async with served(config(store=mini("echo", "get", "reset", tools=tools)), task="lesson", seed=3) as running:
        async with Client(running.url, mode="legacy") as client:
            listed = {tool.name: tool for tool in (await client.list_tools()).tools}
            assert listed.keys() == {"say", "get"} and listed["say"].description == "Say it."
            assert "text" not in listed["say"].input_schema.get("properties", {})
            assert text(await client.call_tool("say", {})) == "fixed"
            assert text(await client.call_tool("get", {})) == "lesson/3"


async def test_a_clients_session_opens_no_lease_and_reaches_no_other_world(mini: Entries, config: Config) -> None:
    made = config(store=mini("get", "reset", scope="process"))
    async with served(made, tokens=(TOKEN, OTHER_TOKEN)) as running:
        own, other = RawClient(running.url, TOKEN), RawClient(running.url, OTHER_TOKEN)
        begin = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
        message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": begin}
        answer = await own.post(message, **ACCEPT)
        session = {**ACCEPT, "mcp-session-id": answer.headers["mcp-session-id"]}
        call = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "get", "arguments": {}}}
        assert '"id":2,"result"' in (await own.post(call, **session)).text.replace(" ", "")
        assert (await other.post(call, **session)).status_code == 404
        handle = session["mcp-session-id"]
        as_lease = await own.ask("tools/call", {"name": "reset", "arguments": {}}, lease=handle, call="1")
        assert as_lease["error"]["data"]["mcp-rollout/failure"]["code"] == "world_lost"
        lease = await own.open("a")
        assert (await own.post(call, **{**session, "mcp-session-id": lease})).status_code == 404


@pytest.mark.parametrize("mode", ["legacy", MODERN])
async def test_arguments_that_do_not_fit_are_answered_in_the_servers_place(
    mini: Entries, config: Config, mode: str
) -> None:
    tools = {"change": {"put": {"fixed": {"text": "fixed"}}}}
    async with (
        served(config(store=mini("echo", "put", tools=tools))) as running,
        Client(running.url, mode=mode) as user,
    ):
        for tool, arguments, fault in (
            ("echo", {}, "missing required 'text'"),
            ("echo", {"text": [1]}, "text"),
            ("put", {"text": "mine"}, "unknown 'text'"),
        ):
            refused = await user.call_tool(tool, arguments)
            assert refused.is_error and text(refused).startswith(f"Invalid arguments for {tool}: ")
            assert fault in text(refused)
        assert text(await user.call_tool("echo", {"text": "plum"})) == "plum"


@pytest.mark.parametrize("mode", ["legacy", MODERN])
async def test_arguments_that_are_left_to_the_server_reach_it(mini: Entries, mode: str) -> None:
    checking = {"command": sys.executable, "args": ["-c", CHECKING], "required": True}
    entries = {"store": mini("echo", call_timeout_s=1), "checking": checking}
    made = GatewayConfig.model_validate({"servers": entries, "calls": {"arguments": "as_sent"}})
    async with served(made) as running, Client(running.url, mode=mode) as user:
        refused = await user.call_tool("double", {"number": "many"})
        assert refused.is_error and "validation error" in text(refused)
        assert text(await user.call_tool("double", {"number": "2"})) == "4"
        with pytest.raises(MCPError) as caught:  # this server answers no call that it cannot read
            await user.call_tool("echo", {})
        assert caught.value.error.data["mcp-rollout/failure"]["code"] == "call_timeout"


@pytest.mark.parametrize("mode", ["legacy", MODERN])
async def test_answers_of_the_server_pass_as_they_are(mini: Entries, config: Config, mode: str) -> None:
    async with served(config(store=mini("echo", "refuse", "die", scope="process"))) as running:
        async with Client(running.url, mode=mode) as client:
            assert text(await client.call_tool("echo", {"text": "é \N{SNOWMAN}"})) == "é \N{SNOWMAN}"
            assert (await client.call_tool("refuse", {})).is_error
            with pytest.raises(MCPError) as caught:
                await client.call_tool("die", {})
            assert caught.value.error.data["mcp-rollout/failure"]["code"] == "delivery_unknown"


async def test_clients_share_a_start_that_fails_and_a_later_one_tries_again(
    tmp_path: Path, mini: Entries, config: Config
) -> None:
    entry = mini("echo", scope="process")
    starts, gone = tmp_path / "starts", tmp_path / "gone"
    counted = (
        f"import os, sys; open({str(starts)!r}, 'a').write('.'); os.path.exists({str(gone)!r}) and sys.exit(1); "
        f"os.execv({sys.executable!r}, sys.argv[1:])"
    )
    entry["args"] = ["-I", "-S", "-c", counted, sys.executable, *entry["args"]]
    failed: list[GatewayError] = []
    async with Gateway(config(store=entry)) as gateway, anyio.create_task_group() as serving:
        clients = ClientGateways(gateway, serving)

        async def come() -> None:
            try:
                await clients.open(Era.HANDSHAKE)
            except GatewayError as error:
                failed.append(error)

        async def starts_for(number: int) -> int:
            before = len(starts.read_text())
            async with anyio.create_task_group() as coming:
                for _ in range(number):
                    coming.start_soon(come)
            return len(starts.read_text()) - before

        gone.touch()
        alone = await starts_for(1)
        assert alone > 0 and len(failed) == 1
        assert await starts_for(5) == alone and len(failed) == 6
        gone.unlink()
        await starts_for(5)
        assert len(failed) == 6
        serving.cancel_scope.cancel()
