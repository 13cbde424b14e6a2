"""The kit's functions over a world: any of them may be async, and each world is placed and closed in its time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from asking import answer, ask
from mcp import Client
from mcp.server.mcpserver import MCPServer
from mcp_types import CallToolResult

from mcp_rollout.mcp_servers.kit import ExpertTurn, Harness, Message, Score, Split, TaskItem, ToolError

pytestmark = pytest.mark.anyio
ErrorOf = Callable[[CallToolResult], str]


async def test_any_function_over_the_world_may_be_async() -> None:
    server, noted = MCPServer("slow", log_level="WARNING"), list[str]()

    async def begin(task: str, seed: int) -> list[int]:
        await anyio.lowlevel.checkpoint()
        return [seed]

    harness = Harness(server, begin)

    @harness.start
    async def start(world: list[int]) -> str:
        await anyio.lowlevel.checkpoint()
        return f"{world}"

    @harness.score
    async def score(world: list[int], messages: list[Message]) -> Score:
        await anyio.lowlevel.checkpoint()
        return Score(score=1.0, parts={})

    @harness.tasks
    async def tasks(split: Split) -> AsyncIterator[TaskItem]:
        for seed in (7, 8, 9):
            await anyio.lowlevel.checkpoint()
            noted.append(f"listed {seed}")
            yield TaskItem(task=split, seed=seed)

    @harness.expert
    async def expert(world: list[int]) -> list[ExpertTurn]:
        await anyio.lowlevel.checkpoint()
        return [ExpertTurn(content=f"{world}")]

    @harness.snapshot
    async def snapshot(world: list[int]) -> dict[str, Any]:
        await anyio.lowlevel.checkpoint()
        return {"world": world}

    @harness.restore
    async def restore(state: dict[str, Any]) -> list[int]:
        await anyio.lowlevel.checkpoint()
        return state["world"]

    @harness.placing
    async def place(world: list[int]) -> None:
        await anyio.lowlevel.checkpoint()
        noted.append(f"placed {world}")

    async with Client(server) as client:
        assert (await answer(client, "tasks", split="test", limit=2))["tasks"] == [
            {"task": "test", "seed": 7, "prompt": "[7]"},
            {"task": "test", "seed": 8, "prompt": "[8]"},
        ]
        assert (await answer(client, "expert", task="test", seed=7))["turns"] == [{"content": "[7]"}]
        assert noted == ["listed 7", "listed 8"]
        await answer(client, "reset", task="test", seed=7)
        assert await answer(client, "snapshot") == {"state": {"world": [7]}}
        await answer(client, "restore", state={"world": [8]})
        assert (await answer(client, "start"))["message"] == "[8]"
        assert noted[2:] == ["placed [7]", "placed [8]"]


async def test_a_world_is_placed_after_the_one_before_it_was_closed_and_a_refusal_undoes_the_reset(
    error_of: ErrorOf,
) -> None:
    server, noted = MCPServer("place", log_level="WARNING"), list[str]()
    harness = Harness(server, lambda task, seed: task)
    harness.closing(lambda world: noted.append(f"closed {world}"))
    harness.start(lambda world: world)

    @harness.placing
    def place(world: str) -> None:
        if world == "elsewhere":
            raise ToolError("there is no place")
        noted.append(f"placed {world}")

    async with Client(server) as client:
        await answer(client, "reset", task="one", seed=0)
        await answer(client, "reset", task="two", seed=0)
        assert noted == ["placed one", "closed one", "placed two"]
        assert "there is no place" in error_of(await ask(client, "reset", task="elsewhere", seed=0))
        assert noted[3:] == ["closed two", "closed elsewhere"] and len(harness) == 0
        assert "call reset" in error_of(await ask(client, "start"))


async def test_a_release_that_is_cancelled_closes_its_world_to_the_end() -> None:
    server = MCPServer("slow", log_level="WARNING")
    harness = Harness(server, lambda task, seed: task)
    began, may_end, closed = anyio.Event(), anyio.Event(), anyio.Event()

    @harness.closing
    async def close(world: str) -> None:
        began.set()
        await may_end.wait()
        closed.set()

    del close  # registered
    async with Client(server) as client:
        await answer(client, "reset", task="x", seed=7)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, client, "release")
            await began.wait()
            tasks.cancel_scope.cancel()
            may_end.set()  # after the cancellation, which in process has reached the tool by now
        with anyio.fail_after(20):
            await closed.wait()
