"""Customers who refuse and who change their minds, and that a change needs their yes."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from mcp_rollout.mcp_servers.kit import Message
from mcp_rollout.mcp_servers.retail.case import Case
from mcp_rollout.mcp_servers.retail.score import all_agreed, is_no, is_yes
from mcp_rollout.mcp_servers.retail.script import CONFIRM, Request, Say, Write
from mcp_rollout.mcp_servers.retail.tasks import TASKS, make_case
from mcp_rollout.mcp_servers.retail.users import scenario
from mcp_rollout.mcp_servers.user_simulator.scripted import ScriptedUser

pytestmark = pytest.mark.anyio
Seats = Callable[..., AbstractAsyncContextManager[Callable[[str], Any]]]
CASES = {split: [make_case(task, TASKS.seed(task)) for task in TASKS.names(split)] for split in ("train", "test")}


def says(request: Request) -> list[Say]:
    return [turn for turn in request.turns if isinstance(turn, Say)]


def refused(request: Request) -> list[Say]:
    return [say for say in says(request) if CONFIRM in say.cues and is_no(say.answer)]


def has_changed_mind(case: Case) -> bool:
    return any(request.kind == "change" and refused(request) for request in case.requests)


def is_withdrawn(case: Case) -> bool:
    return [request.kind for request in case.requests] == ["withdrawn"]


CANCELLED_AFTER_ALL = [
    case
    for case in [*CASES["train"], *CASES["test"]]
    if len(case.requests) == 1 and refused(case.requests[0]) and "cancel" in refused(case.requests[0])[0].cues
]
"""The customer asks for a cancellation, and says no when asked to confirm it."""


@pytest.mark.parametrize("split", CASES)
def test_a_quarter_of_the_customers_refuse_or_change_their_minds(split: str):
    cases = CASES[split]
    withdrawn = [case for case in cases if any(request.kind == "withdrawn" for request in case.requests)]
    changed = [case for case in cases if has_changed_mind(case)]
    assert len(withdrawn) >= len(cases) / 10 and len(changed) >= len(cases) / 5
    instead = {
        write.call.name
        for case in changed
        for request in case.requests
        if refused(request)
        for write in writes(request)
    }
    assert instead >= {"modify_order_address", "modify_order_items", "return_items", "exchange_items"}


def writes(request: Request) -> list[Write]:
    return [turn for turn in request.turns if isinstance(turn, Write)]


async def test_a_change_that_the_customer_refused_costs_what_the_database_earns(retail_players: Seats):
    assert any(is_withdrawn(case) for case in CANCELLED_AFTER_ALL) and any(map(has_changed_mind, CANCELLED_AFTER_ALL))
    async with retail_players() as player:
        for case in CANCELLED_AFTER_ALL:
            one, said = player(case.task), refused(case.requests[0])[0]
            number = re.findall(r"W\d{5}", said.text)[0]
            await play(one, case, until=said)
            assert is_no(one.messages[-1]["content"])
            await one.call("cancel_order", order_id=number, reason="no_longer_needed")
            await one.call("record_outcome", outcome="resolved", summary="Cancelled.")
            await one.say(f"Order #{number} is cancelled.")
            score = await one.score()
            assert score["parts"]["database"] == 0.0 and score["score"] < 0.1, case.task


async def test_what_the_customer_wants_instead_needs_a_yes_of_its_own(retail_players: Seats):
    cases = [case for case in CASES["test"] if has_changed_mind(case) and len(case.requests) == 1]
    async with retail_players() as player:
        for case in cases:
            one = player(case.task)
            await play(one, case, without=says(case.requests[0])[1])
            parts = (await one.score())["parts"]
            items = len(case.statements) + 2
            assert parts == {"database": 1.0, "communication": pytest.approx((items - 1) / items)}, case.task


async def test_an_agent_that_takes_the_no_for_the_end_has_not_done_what_was_wanted_instead(retail_players: Seats):
    cases = [case for case in CASES["test"] if has_changed_mind(case) and len(case.requests) == 1]
    async with retail_players() as player:
        for case in cases:
            one = player(case.task)
            await play(one, case, until=refused(case.requests[0])[0])
            await one.call("record_outcome", outcome="resolved", summary="Nothing done.")
            await one.say("Very well, I have changed nothing.")
            assert (await one.score())["score"] == 0.0


async def test_leaving_alone_what_the_customer_was_never_asked_about_earns_nothing(retail_players: Seats):
    async with retail_players() as player:
        for case in filter(is_withdrawn, CASES["test"]):
            one = player(case.task)
            left = says(case.requests[0])[-1]
            await play(one, case, without=refused(case.requests[0])[0])
            assert left.text in one.messages[-2]["content"]
            assert (await one.score())["score"] == 0.0


def test_a_proposal_that_is_right_at_once_is_agreed_to_at_once():
    cases = [case for case in CASES["train"] if any(say.sooner for request in case.requests for say in says(request))]
    assert cases
    for case in cases:
        lines = [turn for turn in case.turns() if isinstance(turn, Say)]
        user = ScriptedUser(scenario(case.task, case.seed))
        for before, say in zip([None, *lines], lines, strict=False):
            if not say.sooner:
                reply = user.reply(say.text)
                assert is_yes(reply.message) or not (before and before.sooner)
        assert reply.done


def test_no_customer_agrees_to_something_else_than_they_asked_for():
    for case in CASES["test"]:
        user = ScriptedUser(scenario(case.task, case.seed))
        for say in [turn for turn in case.turns() if isinstance(turn, Say)]:
            if CONFIRM in say.cues:
                subject = (re.findall(r"W\d{5}", say.text) or re.findall(r"\d{5}", say.text))[-1]
                assert not is_yes(user.reply(f"Shall I throw {subject} away?").message)
            user.reply(say.text)


@pytest.mark.parametrize(
    ("agreed", "lines"),
    [
        (True, ["Shall I cancel #W12345?", "> Yes, please.", "!"]),
        (True, ["Cancel W12345?", "> And the cost?", "I would cancel #W12345 at no cost.", "> Okay, do it.", "!"]),
        (False, ["Shall I cancel #W12345?", "!"]),
        (False, ["!", "Shall I cancel #W12345?", "> Yes, please."]),
        (False, ["Shall I cancel #W12345?", "> What would that cost?", "!"]),
        (False, ["Shall I cancel #W12345?", "> No, leave it.", "!"]),
        (False, ["Shall I cancel #W12345?", "> Yes, but wait until Friday.", "!"]),
        (False, ["Shall I cancel #W12345?", "> Yesterday it was still there.", "!"]),
        (False, ["Shall I cancel #W54321?", "> Yes.", "!"]),
        (False, ["Shall I cancel #W123456?", "> Yes.", "!"]),
        (False, ["Shall I send #W12345 elsewhere?", "> Yes.", "!"]),
        (False, ["Shall I cancel #W12345?", "> Yes.", "Cancel #W12345 now?", "> No, stop.", "!"]),
        (True, ["Shall I cancel #W12345?", "> Yes.", "And shall I cancel #W54321?", "> No.", "!"]),
    ],
)
def test_a_change_is_agreed_to_by_a_clear_yes_to_it_and_by_nothing_else(agreed: bool, lines: list[str]):
    """Lines of the customer begin with `>`; `!` is the call."""
    made = {"function": {"name": "retail__cancel_order", "arguments": {"order_id": "#w12345"}}}
    messages = [
        {"role": "assistant", "content": "", "tool_calls": [made]}
        if line == "!"
        else {"role": "user" if line.startswith(">") else "assistant", "content": line.removeprefix("> ")}
        for line in lines
    ]
    assert all_agreed([Message.model_validate(message) for message in messages]) == agreed


async def play(one: Any, case: Case, *, until: Say | None = None, without: Say | None = None) -> None:
    """The expert's script up to that line, or without it."""
    await one.begin(case.task, case.seed)
    for turn in case.expert().turns:
        for call in turn.calls or []:
            await one.call(call.name, **call.arguments)
        if turn.content and (without is None or turn.content != without.text):
            await one.say(turn.content)
        if until is not None and turn.content == until.text:
            return
