"""An environment with a `check`: its resets are answered before the worlds are made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel
import pydantic_core
import pytest
from asking import answer, ask
from mcp import Client
from mcp.server.connection import Connection
from mcp.server.mcpserver import Context, MCPServer
from mcp_types import CallToolResult

from mcp_servers.kit import Harness, ToolError
from mcp_servers.kit.direct.calls import DirectCalls
from mcp_servers.kit.direct.lines import LineServer
from mcp_servers.kit.direct.streams import Output
from mcp_servers.retail.server import create_server as retail

pytestmark = pytest.mark.anyio
ErrorOf = Callable[[CallToolResult], str]


def pots(made: list[str]) -> tuple[MCPServer, Harness[list[str]]]:
    """A pot for each trajectory; `made` gets the task of each that was made."""

    def check(task: str, seed: int) -> None:
        if not task.startswith("pot"):
            raise LookupError("there is no such pot")

    def begin(task: str, seed: int) -> list[str]:
        made.append(task)
        if task == "pot broken":
            raise ValueError("no clay")
        return [f"{task} {seed}"]

    server = MCPServer("pots")
    harness = Harness(server, begin, check=check)

    @server.tool()
    async def look(ctx: Context) -> str:
        return ", ".join(harness.world(ctx))

    @harness.snapshot
    def snapshot(pot: list[str]) -> dict[str, Any]:
        return {"pot": pot}

    @harness.restore
    def restore(state: dict[str, Any]) -> list[str]:
        return state["pot"]

    del look, snapshot, restore  # registered
    return server, harness


class Recorded(Output):
    def __init__(self, events: list[str]) -> None:
        super().__init__()
        self._events = events

    def _flush(self) -> None:
        self._events.extend("answered" for _ in self._lines)
        self._lines.clear()
        self._bytes = 0
        self._written()


async def test_a_reset_is_answered_before_its_world_is_made_which_needs_no_further_request() -> None:
    events: list[str] = []
    server, _ = pots(events)
    calls = DirectCalls.of(server)
    assert calls is not None
    client = {"name": "test", "version": "1"}
    calls.connection = Connection.from_envelope("2026-07-28", client, {})
    lines = LineServer(calls, Recorded(events))
    envelope = {"protocolVersion": "2026-07-28", "clientInfo": client, "clientCapabilities": {}}
    meta = {f"io.modelcontextprotocol/{name}": value for name, value in envelope.items()}
    params = {"name": "reset", "arguments": {"task": "pot", "seed": 1}, "_meta": meta}
    lines.receive(pydantic_core.to_json({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}))
    with anyio.fail_after(5):
        while len(events) < 2:
            await anyio.lowlevel.checkpoint()
    assert events == ["answered", "pot"]


async def test_each_world_is_made_once_and_an_unknown_task_is_refused(error_of: ErrorOf) -> None:
    made: list[str] = []
    server, harness = pots(made)
    async with Client(server) as client:
        assert error_of(await ask(client, "reset", "a", task="none", seed=1)).endswith("there is no such pot")
        assert len(harness) == 0 and not made
        await answer(client, "reset", "a", task="pot", seed=1)
        await answer(client, "reset", "b", task="pot", seed=2)
        for _ in range(2):
            assert (await answer(client, "look", "a"))["result"] == "pot 1"
        await answer(client, "restore", "b", **(await answer(client, "snapshot", "a")))
        assert (await answer(client, "look", "b"))["result"] == "pot 1"
        await answer(client, "reset", "a", task="pot again", seed=3)
        assert (await answer(client, "look", "a"))["result"] == "pot again 3"
        for trajectory in "ab":
            await answer(client, "release", trajectory)
        assert len(harness) == 0 and made == ["pot", "pot", "pot again"]


async def test_a_world_that_cannot_be_made_is_reported_by_what_uses_it(error_of: ErrorOf) -> None:
    server, _ = pots([])
    async with Client(server) as client:
        await answer(client, "reset", "a", task="pot broken", seed=1)
        assert "ValueError: no clay" in error_of(await ask(client, "snapshot", "a"))
        assert error_of(await ask(client, "look", "a"))
        await answer(client, "reset", "a", task="pot", seed=1)
        assert (await answer(client, "look", "a"))["result"] == "pot 1"


async def test_what_is_placed_or_closed_is_made_within_its_reset(error_of: ErrorOf) -> None:
    made, closed = list[str](), list[list[str]]()
    server, harness = pots(made)
    harness.closing(closed.append)

    @harness.placing
    def refuse(pot: list[str]) -> None:
        if pot == ["pot 3"]:
            raise ToolError("there is no place")

    async with Client(server) as client:
        await answer(client, "reset", "a", task="pot", seed=1)
        assert made == ["pot"]
        assert error_of(await ask(client, "reset", "b", task="pot", seed=3)).endswith("there is no place")
        await answer(client, "release", "a")
    assert closed == [["pot 3"], ["pot 1"]]


@pytest.mark.parametrize("task", ["retail-train-0120", "retail-test-9999", "counter-any-train-9999", "nothing", ""])
async def test_retail_refuses_what_it_cannot_make(task: str, error_of: ErrorOf) -> None:
    async with Client(retail()) as client:
        assert error_of(await ask(client, "reset", "a", task=task, seed=1)).endswith("the tool `tasks` lists them")
