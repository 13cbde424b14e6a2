"""Agents that say or try everything: what they earn, on all tasks of the test splits."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from itertools import count
from statistics import fmean
from typing import Any

import pytest

from mcp_rollout.mcp_servers.retail.case import Case
from mcp_rollout.mcp_servers.retail.database import TODAY
from mcp_rollout.mcp_servers.retail.script import Look
from mcp_rollout.mcp_servers.retail.tasks import TASKS, make_case

pytestmark = pytest.mark.anyio
Seats = Callable[..., AbstractAsyncContextManager[Callable[[str], Any]]]

CASES = [make_case(task, TASKS.seed(task)) for task in TASKS.names("test")]
DAYS = [f"{TODAY + timedelta(days=number)}" for number in range(1, 31)]
EVERYTHING = """Unfortunately I cannot do it. A colleague will take over about order {orders}. It stays as it is.
Shall I cancel, return, exchange, change, pay or send it to the address {numbers}? It is done. {values}"""
FULL = [pytest.param(outcome, marks=pytest.mark.full) for outcome in ("refused", "transferred")]
VALUE = r"\d+\.\d\d(?!\d)|\d{4}-\d\d-\d\d"


@pytest.mark.parametrize("outcome", ["resolved", *FULL])
@pytest.mark.parametrize(
    "values", [9, pytest.param(3, marks=pytest.mark.full), pytest.param(30, marks=pytest.mark.full)]
)
@pytest.mark.parametrize("looks", [False, True], ids=["blind", "looking everything up"])
async def test_saying_everything_at_once_earns_little(retail_players: Seats, looks: bool, values: int, outcome: str):
    async with retail_players() as player:
        scores = [await spray(player(case.task), case, looks=looks, values=values, outcome=outcome) for case in CASES]
    assert fmean(scores) <= 0.2


@pytest.mark.parametrize("looks", [False, True], ids=["blind", "after all other look-ups"])
async def test_a_day_or_an_amount_among_all_of_them_answers_no_question(retail_players: Seats, looks: bool):
    """Where nothing is to be changed, the right outcome is worth no more than what was told."""
    cases = [case for case in CASES if {request.kind for request in case.requests} == {"question"}]
    assert len(cases) >= 6
    async with retail_players() as player:
        for case in cases:
            one, prices = player(case.task), re.findall(VALUE, f"{case.database.model_dump(mode='json')}")
            await one.begin(case.task, case.seed)
            await one.call("find_user_by_email", email=case.customer.email)
            for turn in case.turns() if looks else ():
                for call in turn.calls if isinstance(turn, Look) else ():
                    await one.call(call.name, **call.arguments)
            await one.call("record_outcome", outcome="resolved", summary="Answered.")
            for start in range(0, 60, 15):
                if (await one.say(" ".join([*DAYS, *prices][start : start + 15])))["done"]:
                    break
            assert (await one.score())["score"] == 0.0, case.task


async def test_the_right_answer_that_was_not_looked_up_is_a_guess(retail_players: Seats):
    async with retail_players() as player:
        for case in CASES:
            if {request.kind for request in case.requests} == {"question"}:
                one = player(case.task)
                await one.begin(case.task, case.seed)
                await one.call("find_user_by_email", email=case.customer.email)
                await one.call("record_outcome", outcome="resolved", summary="Answered.")
                await one.say(case.expert().turns[-1].content or "")
                assert (await one.score())["score"] == 0.0, case.task


async def test_the_prices_of_all_variants_do_not_answer_a_question_about_one(retail_players: Seats):
    cases = [case for case in CASES if re.search(r"How much is|What do you charge", case.opening)]
    assert len(cases) >= 3
    async with retail_players() as player:
        for case in cases:
            answer = case.expert().turns[-1].content or ""
            price = re.findall(VALUE, answer)[0]
            product = next(p for p in case.database.products.values() if price in {f"{v.price}" for v in p.variants})
            others = [f"{variant.price}" for variant in product.variants if f"{variant.price}" != price]
            for number, score in ((0, 1.0), (1, 1.0), (2, 0.0)):
                one = player(f"{case.task} {number}")
                await one.begin(case.task, case.seed)
                await one.call("find_user_by_email", email=case.customer.email)
                await one.call("search_products", query=product.name)
                await one.call("record_outcome", outcome="resolved", summary="Answered.")
                await one.say(" ".join([answer, *others[:number]]))
                assert (await one.score())["score"] == score, case.task


async def test_one_of_two_requests_served_earns_half(retail_players: Seats):
    """The first one is refused as it must be, and the question after it is ignored."""
    cases = [case for case in CASES if [request.kind for request in case.requests] == ["refusal", "question"]]
    assert cases
    async with retail_players() as player:
        for case in cases:
            one = player(case.task)
            await one.begin(case.task, case.seed)
            await one.call("find_user_by_email", email=case.customer.email)
            for call in case.requests[0].turns[0].calls:  # type: ignore[union-attr]
                await one.call(call.name, **call.arguments)
            for turn in case.expert().turns:
                if turn.content and "sorry" in turn.content:
                    await one.say(turn.content)
            await one.call("record_outcome", outcome="resolved", summary="Refused.")
            told = len(case.statements)
            assert (await one.score())["score"] == pytest.approx((told - 1) / told), case.task


async def spray(one: Any, case: Case, *, looks: bool, values: int, outcome: str) -> float:
    """Signs the customer in, records the outcome, and says whatever could be wanted, `values` more values each time."""
    await one.begin(case.task, case.seed)
    if "@" not in one.messages[0]["content"]:
        await one.say("What is your email address, or your name and ZIP code?")
    await one.call("find_user_by_email", email=case.customer.email)
    for turn in count():
        heard = " ".join(message["content"] for message in one.messages if message["role"] == "user")
        orders = sorted(set(re.findall(r"W\d{5}", heard)))
        known = DAYS
        if looks:
            for order in orders:
                for tool in ("get_order", "track_shipment", "check_return_window"):
                    await one.call(tool, order_id=order)
            for name in re.findall(r"the ([A-Z]\w+(?: [A-Z]\w+)?)", heard):
                await one.call("search_products", query=name)
            seen = " ".join(message["content"] for message in one.messages if message["role"] == "tool")
            known = list(dict.fromkeys(re.findall(VALUE, seen)))
        await one.call("record_outcome", outcome=outcome, summary="Served.")
        told = " ".join(known[turn * values : (turn + 1) * values])
        numbers = " ".join(re.findall(r"\b\d{5}\b", heard)[:3])
        reply = await one.say(EVERYTHING.format(orders=" ".join(orders), numbers=numbers, values=told))
        if reply["done"] or turn == 12:
            return (await one.score())["score"]
    raise AssertionError
