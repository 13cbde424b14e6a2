"""The tasks of the shop, each played by its scripted expert."""

from __future__ import annotations

import os
import subprocess
import sys
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
from mcp_rollout.mcp_servers.retail.score import required_changes, score
from mcp_rollout.mcp_servers.retail.script import Say
from mcp_rollout.mcp_servers.retail.shop import Shop
from mcp_rollout.mcp_servers.retail.tasks import TASKS, make_case
from mcp_rollout.mcp_servers.retail.users import scenario
from mcp_rollout.mcp_servers.user_simulator.scripted import ScriptedUser

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


@pytest.mark.parametrize("split", ["train", "test"])
def test_each_beginning_of_a_split_is_mixed_and_starts_with_a_long_task(split: Any):
    cases = [listed_case(task) for task in TASKS.names(split)]
    assert max(len(case.turns()) for case in cases[:3]) == 15
    assert {case.difficulty for case in cases[:3]} == {"easy", "medium", "hard"}
    assert {case.outcome for case in cases[:12]} == {"resolved", "refused", "transferred"}


def test_the_splits_share_no_task_no_seed_and_no_world():
    def names(split: Any) -> set[tuple[Any, ...]]:
        cases = [listed_case(task) for task in TASKS.names(split)]
        return {(value,) for case in cases for value in (case.task, case.seed, case.opening, case.database.digest())}

    assert not names("train") & names("test")


def test_experts_make_parallel_calls_and_always_think():
    turns = [turn for task in ALL_TASKS for turn in listed_case(task).expert().turns]
    assert all(turn.thinking for turn in turns)
    assert any(len(turn.calls or []) > 1 for turn in turns)
    assert all(bool(turn.content) != bool(turn.calls) for turn in turns)


def test_every_write_tool_is_required_by_some_task_of_each_split():
    for split in ("train", "test"):
        cases = [listed_case(task) for task in TASKS.names(split)]
        assert len({write.call.name for case in cases for write in case.required()}) == 7


def test_the_same_task_and_seed_give_the_same_world_and_script_in_another_process():
    program = (
        "from mcp_rollout.mcp_servers.retail.tasks import make_case\n"
        "case = make_case('retail-train-0006', 42)\n"
        "print(case.database.digest(), repr(case.turns()))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60)
    case = make_case("retail-train-0006", 42)
    assert ran.stdout.strip() == f"{case.database.digest()} {case.turns()!r}", ran.stderr


def test_the_listed_tasks_are_those_that_results_were_measured_on():
    """Whoever changes them on purpose changes the digest, and says in the changelog that results no longer compare."""
    listed = sha256()
    for task in ALL_TASKS:
        case = listed_case(task)
        listed.update(repr((task, case.seed, case.opening, case.database.digest(), case.turns())).encode())
    assert listed.hexdigest()[:16] == "463eebfef83001d0"


@settings(max_examples=40, deadline=None)
@given(task=st.sampled_from(ALL_TASKS), seed=st.integers(min_value=-(2**63), max_value=2**63))
def test_any_seed_makes_a_task_that_its_expert_can_do(task: str, seed: int):
    case = make_case(task, seed)
    user = ScriptedUser(scenario(task, seed))
    says = [turn for turn in case.turns() if isinstance(turn, Say)]
    replies = [user.reply(say.text) for say in says]
    assert [reply.done for reply in replies] == [False] * (len(says) - 1) + [True]
    assert bool(required_changes(case)) == bool(case.required())
    assert len(case.turns()) <= 15


@settings(max_examples=40, deadline=None)
@given(task=st.sampled_from(ALL_TASKS), seed=st.integers(min_value=0, max_value=2**32))
def test_the_user_never_says_what_the_agent_has_to_find_out(task: str, seed: int):
    case = make_case(task, seed)
    spoken = [case.opening, *(turn.answer for turn in case.turns() if isinstance(turn, Say))]
    echo = [Message(role="assistant", content=line) for line in spoken]
    assert score(case, Shop(database=case.database.copy_to_change(case.customer)), echo).score == 0.0


@settings(max_examples=30, deadline=None)
@given(st.text(max_size=30))
def test_an_unknown_task_is_a_lookup_error(task: str):
    if task not in ALL_TASKS:
        with pytest.raises(LookupError):
            make_case(task, 0)
