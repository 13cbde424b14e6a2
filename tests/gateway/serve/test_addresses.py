"""A world has an address: unchanged clients keep their state there, and no other address or bearer shares it."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client, MCPError
from mcp.server.mcpserver import MCPServer
from served import OTHER_TOKEN, TOKEN, RawClient, client, served, until_free
from serving import serving

from mcp_rollout import Gateway, GatewayConfig

Entries = Callable[..., dict[str, Any]]
Config = Callable[..., GatewayConfig]
pytestmark = pytest.mark.anyio
MODERN = "2026-07-28"
ERAS = ["legacy", MODERN]
TOKENS = (TOKEN, OTHER_TOKEN)
BEGIN = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
INITIALIZE = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": BEGIN}
STREAMS = {"accept": "application/json, text/event-stream"}


def text(result: Any) -> str:
    return result.content[0].text


async def called(url: str, mode: str, tool: str, token: str = TOKEN, **arguments: str) -> str:
    """One call of a client that connects for it alone."""
    async with client(url, token, mode) as user:
        return text(await user.call_tool(tool, arguments))


@asynccontextmanager
async def cells(mini: Entries, **options: Any) -> AsyncIterator[Any]:
    """Cells of which each world has its own process."""
    entry = mini("put", "get", "die", "pid", "reset", scope="process")
    config = {"servers": {"store": entry}, **options.pop("bounds", {})}
    async with served(GatewayConfig.model_validate(config), **options) as running:
        yield running


SDK = """
from mcp.server.mcpserver import MCPServer
server, cell = MCPServer("cell", log_level="ERROR"), ["nothing"]

@server.tool()
def put(text: str) -> str:
    cell[0] = text
    return "stored"

@server.tool()
def get() -> str:
    return cell[0]

server.run("stdio")
"""
NAMES = ("", "/one", "/two")


@pytest.mark.parametrize(("speaks", "steps"), [("the handshake", 40), ("both eras", 8)])
async def test_a_world_is_its_bearers_at_its_address_in_both_eras_and_nobody_elses(
    mini: Entries, speaks: str, steps: int
) -> None:
    chance, worlds, ends = random.Random(1), dict[tuple[str, str], str](), speaks == "the handshake"
    entry = mini("put", "get", "die") if ends else {"command": sys.executable, "args": ["-c", SDK], "required": True}
    made = GatewayConfig.model_validate({"servers": {"store": {**entry, "scope": "process"}}})
    async with served(made, tokens=TOKENS) as running, httpx2.AsyncClient() as http:
        for step in range(steps):
            token, name, mode = chance.choice(TOKENS), chance.choice(NAMES), chance.choice(ERAS)
            # Without a name, a session of the handshake has a world of its own, which ends with it.
            here = (token, name) if name or mode == MODERN else (token, f"session {step}")
            match chance.choice(["put", "get", "get", *(["die", "delete"] if ends else [])]):
                case "put":
                    assert await called(running.url + name, mode, "put", token, text=str(step)) == "stored"
                    worlds[here] = str(step)
                case "get":
                    assert await called(running.url + name, mode, "get", token) == worlds.get(here, "nothing")
                case "die":
                    with pytest.raises((MCPError, ExceptionGroup)):
                        await called(running.url + name, mode, "die", token)
                    worlds.pop(here, None)
                case _ if name:
                    headers = {"authorization": f"Bearer {token}"}
                    assert (await http.delete(running.url + name, headers=headers)).status_code == 200
                    worlds.pop(here, None)
                case _:
                    pass


@pytest.mark.parametrize("mode", ERAS)
async def test_the_address_of_a_lease_is_its_world_with_the_policys_tools(mini: Entries, mode: str) -> None:
    async with cells(mini, tokens=TOKENS) as running:
        own = RawClient(running.url, TOKEN)
        opened = (await own.ask("mcp-rollout/leases/open", {"key": "k", "trajectory": "t", "seed": 1}))["result"]
        lease, address = opened["lease"], running.url.removesuffix("/mcp") + opened["address"]
        assert lease not in address
        async with client(address, TOKEN, mode) as user:
            assert "reset" not in {tool.name for tool in (await user.list_tools()).tools}
            assert (await user.call_tool("reset", {"task": "t", "seed": 1})).is_error
            assert lease not in str(await user.call_tool("put", {"text": "plum"}))
        found = await own.ask("tools/call", {"name": "get", "arguments": {}}, lease=lease, call="1")
        assert found["result"]["content"][0]["text"] == "plum"
        with pytest.raises((MCPError, ExceptionGroup)):
            await called(address, mode, "get", OTHER_TOKEN)
        await own.ask("mcp-rollout/leases/close", lease=lease)
        with pytest.raises((MCPError, ExceptionGroup)):  # and not a new world, of which its trainer knows nothing
            await called(address, mode, "get")
        assert running.leases == 0


async def test_results_at_a_leases_address_are_whole_but_for_what_is_its_trainers(mini: Entries) -> None:
    server = MCPServer("sums", log_level="CRITICAL")

    @server.tool()
    async def add(a: int, b: int) -> int:
        return a + b

    del add  # registered
    async with serving(server, "http") as entry:
        async with served(
            GatewayConfig.model_validate({"servers": {"sums": entry, "store": mini("reward")}})
        ) as running:
            params = {"key": "k", "trajectory": "t", "seed": 1}
            opened = (await RawClient(running.url).ask("mcp-rollout/leases/open", params))["result"]
            async with Client(running.url.removesuffix("/mcp") + opened["address"], mode=MODERN) as user:
                assert (await user.call_tool("add", {"a": 2, "b": 3})).structured_content == {"result": 5}
                assert "reward" not in str((await user.call_tool("reward", {})).meta)


async def test_a_world_ends_when_its_address_is_deleted_and_when_it_is_idle(mini: Entries) -> None:
    async with cells(mini, idle_s=0.05) as running, httpx2.AsyncClient() as http:
        url = running.url + "/one"
        async with Client(url, mode=MODERN) as user:
            await user.call_tool("put", {"text": "plum"})
            assert (await http.delete(url)).status_code == 200 and running.leases == 0
            await user.call_tool("put", {"text": "plum"})
            await until_free(running)
            assert text(await user.call_tool("get", {})) == "nothing"


async def test_a_session_is_unknown_at_another_address(mini: Entries) -> None:
    call = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "get", "arguments": {}}}
    async with cells(mini) as running:
        here = RawClient(running.url + "/one")
        answer = await here.post(INITIALIZE, **STREAMS)
        headers = {**STREAMS, "mcp-session-id": answer.headers["mcp-session-id"]}
        assert (await here.post(call, **headers)).status_code == 200
        for other in (running.url, running.url + "/two"):
            assert (await RawClient(other).post(call, **headers)).status_code == 404


@pytest.mark.parametrize("path", ["/mcp/", "/mcp/a/b", "/mcp/a%2Fb", "/mcp/%C3%A9", "/mcp/" + "a" * 129, "/mcps"])
async def test_what_is_no_address_is_not_served(mini: Entries, path: str) -> None:
    async with cells(mini) as running:
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
        assert (await RawClient(running.url.removesuffix("/mcp") + path).post(message)).status_code == 404


async def test_no_lease_is_opened_at_the_address_of_a_world(mini: Entries) -> None:
    async with cells(mini) as running:
        answer = await RawClient(running.url + "/one").post(
            {"jsonrpc": "2.0", "id": 1, "method": "mcp-rollout/leases/catalogue", "params": {}}
        )
        assert answer.status_code >= 400 and "catalogue" not in answer.text
        entry = {"store": {"url": running.url + "/one", "required": True}}
        async with (
            Gateway(GatewayConfig.model_validate({"servers": entry})) as gateway,
            gateway.lease(trajectory="t", task=None, seed=1) as session,
        ):
            await session.call("put", {"text": "plum"})
        assert await called(running.url + "/one", MODERN, "get") == "plum"


async def test_one_bearer_cannot_take_every_place(mini: Entries) -> None:
    async with cells(mini, tokens=TOKENS, bounds={"max_sessions": 4}) as running, anyio.create_task_group() as tasks:
        granted: list[str] = []

        async def take(name: str) -> None:
            await called(f"{running.url}/{name}", MODERN, "pid")
            granted.append(name)

        for number in range(6):
            tasks.start_soon(take, str(number))
        assert (await called(running.url, MODERN, "pid", OTHER_TOKEN)).isdigit()
        assert (await called(running.url + "/x", "legacy", "pid", OTHER_TOKEN)).isdigit()
        assert len(granted) <= 2
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize(("path", "begun"), [("/~over", 0), ("", 2)])
async def test_sessions_that_begin_at_once_or_in_vain_take_no_place_of_anothers(
    mini: Entries, path: str, begun: int
) -> None:
    statuses: list[int] = []
    async with cells(mini, tokens=TOKENS, client_sessions=4) as running:
        own = RawClient(running.url + path, TOKEN)

        async def begin() -> None:
            statuses.append((await own.post(INITIALIZE, **STREAMS)).status_code)

        async with anyio.create_task_group() as tasks:
            for _ in range(6):
                tasks.start_soon(begin)
        assert sorted(statuses) == [200] * 2 + [429] * 4 and running.leases == begun
        assert (await called(running.url, "legacy", "pid", OTHER_TOKEN)).isdigit()


async def test_a_session_that_began_in_vain_has_no_world(mini: Entries) -> None:
    async with cells(mini) as running:
        own = RawClient(running.url + "/~over")
        session = (await own.post(INITIALIZE, **STREAMS)).headers["mcp-session-id"]
        for method in ("tools/call", "tools/list", "prompts/list"):
            message = {"jsonrpc": "2.0", "id": 2, "method": method, "params": {"name": "get", "arguments": {}}}
            answer = await own.post(message, **STREAMS, **{"mcp-session-id": session})
            assert "initialize" in answer.text and "TaskGroup" not in answer.text
        assert running.leases == 0


async def test_a_world_whose_clients_left_while_it_waited_for_its_place_takes_none(mini: Entries) -> None:
    async with cells(mini, idle_s=600, bounds={"max_sessions": 1}) as running, httpx2.AsyncClient() as http:
        await called(running.url + "/one", MODERN, "pid")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(called, running.url + "/two", MODERN, "pid")
            while running.leases < 2:
                await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
        url = running.url + "/three"
        session = (await RawClient(url).post(INITIALIZE, **STREAMS)).headers["mcp-session-id"]
        assert (await http.delete(url, headers={"mcp-session-id": session})).status_code == 200
        with anyio.fail_after(60):
            while running.leases > 1:
                await anyio.lowlevel.checkpoint()


async def test_one_trainer_leaves_a_place_to_each_other_one(mini: Entries) -> None:
    async with cells(mini, tokens=TOKENS, bounds={"max_sessions": 3}) as running:
        own, other = RawClient(running.url, TOKEN), RawClient(running.url, OTHER_TOKEN)
        for name in "ab":
            await own.open(name)
        third = {"key": "c", "trajectory": "c", "seed": 1, "wait_s": 0}
        assert not (await own.ask("mcp-rollout/leases/open", third))["result"]["granted"]
        assert await other.open("d")


def test_sigterm_ends_worlds_that_were_left_and_streams_that_are_open(mini: Entries, tmp_path: Path) -> None:
    file = tmp_path / "servers.json"
    file.write_text(json.dumps({"mcpServers": {"store": mini("put", scope="process")}}))
    argv = [sys.executable, "-m", "mcp_rollout", "serve", str(file), "--no-token", "--drain-s", "600"]
    program = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    overdue = threading.Timer(90, program.kill)
    overdue.start()
    assert program.stdout is not None
    url = program.stdout.readline().strip()

    async def leave() -> None:
        for number in range(3):
            async with Client(f"{url}/{number}", mode=MODERN) as user:
                await user.call_tool("put", {"text": "plum"})
        async with httpx2.AsyncClient() as http:
            begin = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
            message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": begin}
            headers = {"accept": "application/json, text/event-stream"}
            session = (await http.post(url, json=message, headers=headers)).headers["mcp-session-id"]
            async with http.stream("GET", url, headers={**headers, "mcp-session-id": session}) as stream:
                assert stream.status_code == 200
                program.send_signal(signal.SIGTERM)
                await anyio.to_thread.run_sync(program.wait)

    try:
        anyio.run(leave)
        _, problems = program.communicate()
        assert program.returncode == 0 and "exceeded" not in problems
    finally:
        overdue.cancel()
        program.kill()
        program.communicate()
