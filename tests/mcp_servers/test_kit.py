"""The authoring kit, by an environment that uses all of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
from asking import answer, ask
from mcp import Client
from mcp.server.mcpserver import Context, MCPServer
from mcp_types import CallToolResult

from mcp_rollout.mcp_servers.kit import (
    Call,
    Elicited,
    ExpertTurn,
    Harness,
    Message,
    Reply,
    Score,
    Split,
    TaskItem,
    ToolError,
)

pytestmark = pytest.mark.anyio
ErrorOf = Callable[[CallToolResult], str]


@dataclass
class Pot:
    task: str
    coins: int
    closed: bool = False


def pots(server: MCPServer, **options: Any) -> tuple[Harness[Pot], list[Pot]]:
    """A pot of coins for each trajectory, and the pots that were closed."""
    closed: list[Pot] = []

    async def begin(task: str, seed: int) -> Pot:
        if task == "none":
            raise LookupError("there is no such pot")
        return Pot(task, Random(f"{task}/{seed}").randint(10, 99))

    harness = Harness(server, begin, **options)

    @server.tool()
    async def take(coins: int, ctx: Context) -> int:
        """Take coins."""
        pot = harness.world(ctx)
        if coins > pot.coins:
            raise ToolError(f"there are {pot.coins}")
        pot.coins -= coins
        return pot.coins

    @harness.start
    def start(pot: Pot) -> str:
        return f"I have {pot.coins} coins."

    @harness.reply
    async def reply(pot: Pot, message: str) -> Reply:
        pot.coins -= 1
        return Reply(message=f"{message}? {pot.coins} left.", done=pot.coins < 5)

    @harness.elicit
    def elicit(pot: Pot, question: str) -> Elicited:
        pot.coins -= 1
        return Elicited(action="accept", content={"coins": pot.coins})

    @harness.score
    def score(pot: Pot, messages: list[Message]) -> Score:
        return Score(score=float(pot.coins == 0), parts={"empty": float(pot.coins == 0)})

    @harness.tasks
    def tasks(split: Split) -> Iterator[TaskItem]:
        index = 0
        while True:  # as many as are asked for
            yield TaskItem(task=f"{split}-{index}", seed=index)
            index += 1

    @harness.expert
    def expert(pot: Pot) -> Iterator[ExpertTurn]:
        yield ExpertTurn(calls=[Call(name="take", arguments={"coins": pot.coins})])

    @harness.snapshot
    def snapshot(pot: Pot) -> dict[str, Any]:
        return {"task": pot.task, "coins": pot.coins}

    @harness.restore
    def restore(state: dict[str, Any]) -> Pot:
        return Pot(**state)

    @harness.closing
    async def close(pot: Pot) -> None:
        pot.closed = True
        closed.append(pot)

    return harness, closed


def coins_of(opening: dict[str, Any]) -> int:
    return int(opening["message"].split()[2])


async def test_every_role_is_one_function_over_the_world() -> None:
    server = MCPServer("pots", log_level="WARNING")
    pots(server)
    async with Client(server) as client:
        roles = {tool.name: (tool.meta or {}).get("mcp-rollout/role") for tool in (await client.list_tools()).tools}
        harness = "reset start reply elicit score release snapshot restore tasks expert".split()
        assert roles == {"take": None} | {role: role for role in harness}
        await answer(client, "reset", task="x", seed=3)
        coins = coins_of(await answer(client, "start"))
        assert (await answer(client, "reply", seq=1, message="Hm"))["message"] == f"Hm? {coins - 1} left."
        assert (await answer(client, "elicit", seq=1, message="?"))["content"] == {"coins": coins - 2}
        assert (await answer(client, "score", messages=[]))["score"] == 0
        await answer(client, "take", coins=coins - 2)
        assert await answer(client, "score", messages=[]) == {"score": 1.0, "parts": {"empty": 1.0}}


async def test_a_turn_is_taken_once_however_often_it_is_asked_for(error_of: ErrorOf) -> None:
    server = MCPServer("pots", log_level="WARNING")
    pots(server)
    async with Client(server) as client:
        await answer(client, "reset", task="x", seed=3)
        first = await answer(client, "reply", seq=1, message="Hm")
        assert await answer(client, "reply", seq=1, message="Again") == first
        assert "the next one is 2" in error_of(await ask(client, "reply", seq=3, message="Hm"))


async def test_the_expert_and_the_prompts_come_from_fresh_worlds_that_are_closed_again() -> None:
    server = MCPServer("pots", log_level="WARNING")
    harness, closed = pots(server)
    async with Client(server) as client:
        items = (await answer(client, "tasks", split="train", limit=3))["tasks"]
        assert [(item["task"], item["seed"]) for item in items] == [("train-0", 0), ("train-1", 1), ("train-2", 2)]
        await answer(client, "reset", task="train-1", seed=1)
        assert items[1]["prompt"] == (await answer(client, "start"))["message"]
        (turn,) = (await answer(client, "expert", task="train-1", seed=1))["turns"]
        await answer(client, "take", coins=turn["calls"][0]["arguments"]["coins"])
        assert (await answer(client, "score", messages=[]))["score"] == 1.0
        assert len(closed) == 4 and len(harness) == 1


async def test_a_world_is_closed_once_by_release_or_reset(error_of: ErrorOf) -> None:
    server = MCPServer("pots", log_level="WARNING")
    harness, closed = pots(server)
    async with Client(server) as client:
        for seed in (1, 2):
            await answer(client, "reset", task="x", seed=seed)
        assert len(closed) == 1
        for _ in range(2):
            await answer(client, "release")
        assert len(closed) == 2 and len(harness) == 0
        assert "was released" in error_of(await ask(client, "take", coins=1))


async def test_a_snapshot_puts_the_world_back_also_in_another_trajectory() -> None:
    server = MCPServer("pots", log_level="WARNING")
    pots(server)
    async with Client(server) as client:
        for name in ("a", "b"):
            await answer(client, "reset", name, task="x", seed=3)
        coins = coins_of(await answer(client, "start"))
        state = (await answer(client, "snapshot"))["state"]
        await answer(client, "take", coins=coins)
        await answer(client, "restore", state=state)
        await answer(client, "restore", "b", state=state | {"coins": 7})
        assert coins_of(await answer(client, "start")) == coins
        assert coins_of(await answer(client, "start", "b")) == 7


async def test_a_restored_world_counts_on_and_goes_on_from_where_it_was(error_of: ErrorOf) -> None:
    server = MCPServer("pots", log_level="WARNING")
    _, closed = pots(server)
    async with Client(server) as client:
        await answer(client, "reset", task="x", seed=3)
        coins = coins_of(await answer(client, "start"))
        state = (await answer(client, "snapshot"))["state"]
        given = [await answer(client, "reply", seq=seq, message="Hm") for seq in (1, 2)]
        await answer(client, "elicit", seq=1, message="?")
        await answer(client, "restore", state=state)
        assert len(closed) == 1
        assert [await answer(client, "reply", seq=seq, message="Again") for seq in (1, 2)] == given
        assert "the next one is 3" in error_of(await ask(client, "reply", seq=4, message="Hm"))
        assert (await answer(client, "reply", seq=3, message="Hm"))["message"] == f"Hm? {coins - 1} left."
        assert (await answer(client, "elicit", seq=2, message="?"))["content"] == {"coins": coins - 2}


async def test_no_room_and_no_such_task_are_told_and_leave_nothing_behind(error_of: ErrorOf) -> None:
    server = MCPServer("pots", log_level="WARNING")
    harness, _ = pots(server, max_trajectories=1)
    async with Client(server) as client:
        assert "there is no such pot" in error_of(await ask(client, "reset", task="none", seed=1))
        await answer(client, "reset", task="x", seed=1)
        assert "max_trajectories" in error_of(await ask(client, "reset", "b", task="x", seed=1))
        assert len(harness) == 1


async def test_without_reset_a_trajectory_may_get_a_world_of_its_seed() -> None:
    server = MCPServer("pots", log_level="WARNING")
    pots(server, without_reset=lambda seed: Pot("any", 7 + seed))
    async with Client(server) as client:
        assert coins_of(await answer(client, "start")) == 7


async def test_an_exception_in_a_function_is_told_with_its_type_and_place(error_of: ErrorOf) -> None:
    server = MCPServer("pots", log_level="WARNING")
    harness = Harness(server, lambda task, seed: Pot(task, seed))

    @harness.score
    def score(pot: Pot, messages: list[Message]) -> Score:
        return Score(score=1 / pot.coins)

    async with Client(server) as client:
        await answer(client, "reset", task="x", seed=0)
        told = error_of(await ask(client, "score", messages=[]))
        assert "ZeroDivisionError: " in told and "(test_kit.py, line " in told
