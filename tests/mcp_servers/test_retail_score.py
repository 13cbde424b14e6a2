"""What the score rewards, and what it does not."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from mcp_rollout.mcp_servers.retail.case import Case
from mcp_rollout.mcp_servers.retail.script import Say
from mcp_rollout.mcp_servers.retail.tasks import TASKS, make_case

pytestmark = pytest.mark.anyio
Seats = Callable[..., AbstractAsyncContextManager[Callable[[str], Any]]]


def _is_one_plain_change(case: Case) -> bool:
    return (
        len(case.requests) == 1
        and len(case.requests[0].turns) == 4
        and case.outcome == "resolved"
        and bool(case.statements)
    )


CHANGE = next(task for task in TASKS.names("train") if _is_one_plain_change(make_case(task, TASKS.seed(task))))
"""A task with one change, asked for once and agreed to, and an amount to be told."""
TEST_TASKS = TASKS.names("test")
NOT_TOLD = pytest.approx((0 + 1 / 2 + 1) / 3)
"""Of that task's communication: nothing told, the outcome for half of what was to be achieved, and asked before."""


async def test_recording_an_outcome_and_nothing_else_is_worth_nothing(retail_players: Seats):
    async with retail_players() as player:
        for task in TEST_TASKS:
            one, case = player(task), make_case(task, TASKS.seed(task))
            await one.begin(task, case.seed)
            await one.call("find_user_by_email", email=case.customer.email)
            await one.call("record_outcome", outcome=case.outcome, summary="All is well.")
            await one.say("All is well. Goodbye.")
            assert (await one.score())["score"] == 0.0, task


async def test_part_of_the_required_changes_earns_part_of_the_database_score(retail_players: Seats):
    async with retail_players() as player:
        one, case = player("a"), make_case(TEST_TASKS[0], TASKS.seed(TEST_TASKS[0]))
        await one.begin(case.task, case.seed)
        await one.call("find_user_by_email", email=case.customer.email)
        first = case.required()[0].call
        await one.call(first.name, **first.arguments)
        parts = (await one.score())["parts"]
    assert 0 < parts["database"] < 1


async def test_one_change_too_many_voids_the_database_score(retail_players: Seats):
    async with retail_players() as player:
        one, case = player("a"), make_case(CHANGE, TASKS.seed(CHANGE))
        await one.play_expert(case.task, case.seed)
        address = {"street": "1 Other Street", "city": "Elsewhere", "state": "OR", "zip_code": "97100"}
        await one.call("update_user_address", address=address)
        parts = (await one.score())["parts"]
    assert parts["database"] == 0.0


async def test_text_beside_tool_calls_was_not_told(retail_players: Seats):
    async with retail_players() as player:
        one = player("a")
        await one.play_expert(CHANGE, TASKS.seed(CHANGE))
        *_, told, _goodbye = one.messages
        told["tool_calls"] = [{"type": "function", "function": {"name": "list_orders", "arguments": "{}"}}]
        assert (await one.score())["parts"]["communication"] == NOT_TOLD


async def test_changing_before_asking_costs_communication(retail_players: Seats):
    async with retail_players() as player:
        one, case = player("a"), make_case(CHANGE, TASKS.seed(CHANGE))
        await one.begin(CHANGE, case.seed)
        await one.call("find_user_by_email", email=case.customer.email)
        write, report = case.required()[0].call, case.turns()[-1]
        await one.call(write.name, **write.arguments)
        await one.call("record_outcome", outcome="resolved", summary="Done.")
        assert isinstance(report, Say)
        await one.say(report.text)
        assert (await one.score())["parts"] == {"database": 1.0, "communication": pytest.approx(2 / 3)}


async def test_tool_calls_may_carry_prefixed_names_and_arguments_as_text(retail_players: Seats):
    async with retail_players() as player:
        one = player("a")
        await one.play_expert(CHANGE, TASKS.seed(CHANGE))
        for message in one.messages:
            for call in message.get("tool_calls", []):
                function = call["function"]
                function["name"], function["arguments"] = (
                    f"retail__{function['name']}",
                    json.dumps(function["arguments"]),
                )
        assert (await one.score())["score"] == 1.0
