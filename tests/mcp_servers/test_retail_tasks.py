"""The tasks of the shop, each played by its scripted expert."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import cache
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_rollout.mcp_servers.kit import Message
from mcp_rollout.mcp_servers.retail.case import Case
from mcp_rollout.mcp_servers.retail.score import score
from mcp_rollout.mcp_servers.retail.script import Say
from mcp_rollout.mcp_servers.retail.shop import Shop
from mcp_rollout.mcp_servers.retail.tasks import TASKS, make_case

pytestmark = pytest.mark.anyio
Seats = Callable[..., AbstractAsyncContextManager[Callable[[str], Any]]]
ALL_TASKS = [*TASKS.names("train"), *TASKS.names("test")]


@cache
def listed_case(task: str) -> Case:
    """The case as `tasks` lists it. Tests only read it."""
    return make_case(task, TASKS.seed(task))


@pytest.mark.parametrize("split", ["train", "test"])
async def test_the_expert_scores_one_and_satisfies_the_user_on_every_task(retail_players: Seats, split: str):
    async with retail_players() as player:
        lister = player("lister")
        listed = (await lister.harness(lister.world, "tasks", split=split, limit=10**6))["tasks"]
        assert len(listed) == TASKS.sizes[split]
        for item in listed:
            one = player(item["task"])
            replies = await one.play_expert(item["task"], item["seed"])
            assert one.messages[0]["content"] == item["prompt"]
            assert [reply["done"] for reply in replies] == [False] * (len(replies) - 1) + [True], item
            assert await one.score() == {"score": 1.0, "parts": {"database": 1.0, "communication": 1.0}}, item
            await one.harness(one.world, "release")
            await one.harness(one.user, "release")


def test_no_expert_needs_more_than_fifteen_turns_and_several_need_exactly_that():
    turns = [len(listed_case(task).expert().turns) for task in ALL_TASKS]
    assert (min(turns), max(turns)) == (3, 15)
    assert turns.count(15) >= 20


def test_the_listed_tasks_are_those_that_results_were_measured_on():
    """Whoever changes them on purpose changes the digest, and says in the changelog that results no longer compare."""
    listed = sha256()
    for task in ALL_TASKS:
        case = listed_case(task)
        listed.update(repr((task, case.seed, case.opening, case.database.digest(), case.turns())).encode())
    assert listed.hexdigest()[:16] == "463eebfef83001d0"


@settings(max_examples=40, deadline=None)
@given(task=st.sampled_from(ALL_TASKS), seed=st.integers(min_value=0, max_value=2**32))
def test_the_user_never_says_what_the_agent_has_to_find_out(task: str, seed: int):
    case = make_case(task, seed)
    spoken = [case.opening, *(turn.answer for turn in case.turns() if isinstance(turn, Say))]
    echo = [Message(role="assistant", content=line) for line in spoken]
    assert score(case, Shop(database=case.database.copy_to_change(case.customer)), echo).score == 0.0
