"""The short tasks, in which an order's state decides what can be done."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from statistics import fmean
from typing import Any

import pytest

from mcp_servers.retail.short_tasks import SHORT_TASKS, ShortSlice

pytestmark = pytest.mark.anyio
Seats = Callable[..., AbstractAsyncContextManager[Callable[[str], Any]]]
SLICES: tuple[ShortSlice, ...] = ("any", "fitting")


@pytest.mark.parametrize("slice_", SLICES)
async def test_the_expert_serves_every_customer_in_few_turns(retail_players: Seats, slice_: ShortSlice):
    async with retail_players(slice_=slice_) as player:
        for task in SHORT_TASKS[slice_].names("test"):
            one = player(task)
            replies = await one.play_expert(task, SHORT_TASKS[slice_].seed(task))
            assert replies[-1]["done"] and (await one.score())["score"] == 1.0, task
            assert sum(message["role"] == "assistant" for message in one.messages) <= 5


@pytest.mark.parametrize("slice_", SLICES)
async def test_saying_nothing_and_doing_nothing_is_worth_nothing(retail_players: Seats, slice_: ShortSlice):
    async with retail_players(slice_=slice_) as player:
        scores: list[float] = []
        for task in SHORT_TASKS[slice_].names("test"):
            one = player(task)
            await one.begin(task, SHORT_TASKS[slice_].seed(task))
            await one.say("")
            scores.append((await one.score())["score"])
    assert fmean(scores) == 0.0


@pytest.mark.parametrize("step", ["cancel_order", "track_shipment", "check_return_window"])
async def test_one_step_for_all_orders_does_not_serve_most_customers(retail_players: Seats, step: str):
    """What the blind expert of the slice `any` teaches is worth little where the step has to fit."""
    async with retail_players(slice_="fitting") as player:
        served: list[bool] = []
        for task in SHORT_TASKS["fitting"].names("test"):
            one = player(task)
            expert = await _expert(one, task)
            served.append(step in [call["name"] for turn in expert for call in turn.get("calls", [])])
    assert 0 < fmean(served) <= 0.4


async def test_the_right_day_is_worth_nothing_to_an_agent_that_did_not_look_it_up(retail_players: Seats):
    """It is the same day in every world of this slice, so a policy could learn it by heart."""
    async with retail_players(slice_="fitting") as player:
        for task in SHORT_TASKS["fitting"].names("test"):
            one = player(task)
            last = (await _expert(one, task))[-1]["content"]
            await one.begin(task, SHORT_TASKS["fitting"].seed(task))
            await one.call("list_orders")
            await one.say(last)
            assert (await one.score())["score"] == 0.0, last


@pytest.mark.parametrize("slice_", SLICES)
async def test_train_and_test_share_no_task_and_no_seed(slice_: ShortSlice):
    tasks = SHORT_TASKS[slice_]
    train, test = (tasks.names(split) for split in ("train", "test"))
    assert not set(train) & set(test)
    assert not {tasks.seed(task) for task in train} & {tasks.seed(task) for task in test}


async def _expert(player: Any, task: str) -> list[dict[str, Any]]:
    seed = SHORT_TASKS["fitting"].seed(task)
    return (await player.harness(player.world, "expert", task=task, seed=seed))["turns"]
