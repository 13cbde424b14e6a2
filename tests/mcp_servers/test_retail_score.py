"""What the score rewards, and what it does not."""

from __future__ import annotations

import json
import re
import string
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from random import Random
from statistics import fmean
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


async def test_doing_nothing_scores_zero_on_every_task(retail_players: Seats):
    async with retail_players() as player:
        for task in TEST_TASKS:
            one = player(task)
            await one.begin(task, TASKS.seed(task))
            assert (await one.score())["score"] == 0.0


@pytest.mark.parametrize("informed", [False, True], ids=["uniform", "signed in and reading out"])
async def test_random_calls_score_little(retail_players: Seats, informed: bool):
    async with retail_players() as player:
        scores = [await _random_score(player(task), task, informed=informed) for task in TEST_TASKS]
    assert fmean(scores) <= 0.2


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


async def test_a_fact_that_only_a_tool_result_has_was_not_told(retail_players: Seats):
    async with retail_players() as player:
        one = player("a")
        await one.play_expert(CHANGE, TASKS.seed(CHANGE))
        one.messages = [
            m for m in one.messages if m["role"] != "assistant" or m.get("tool_calls") or "?" in m["content"]
        ]
        result = await one.score()
    assert result["parts"] == {"database": 1.0, "communication": NOT_TOLD}


async def test_text_beside_tool_calls_was_not_told(retail_players: Seats):
    async with retail_players() as player:
        one = player("a")
        await one.play_expert(CHANGE, TASKS.seed(CHANGE))
        *_, told, _goodbye = one.messages
        told["tool_calls"] = [{"type": "function", "function": {"name": "list_orders", "arguments": "{}"}}]
        assert (await one.score())["parts"]["communication"] == NOT_TOLD


async def test_a_record_read_out_as_it_came_tells_nothing(retail_players: Seats):
    async with retail_players() as player:
        one, case = player("a"), make_case(CHANGE, TASKS.seed(CHANGE))
        await one.play_expert(CHANGE, case.seed)
        number = case.required()[0].call.arguments["order_id"]
        records = [m["content"] for m in one.messages if m["role"] == "tool" and f'"{number}"' in m["content"]]
        one.messages[-2]["content"] = records[-1]
        assert (await one.score())["parts"]["communication"] == NOT_TOLD


async def test_telling_every_amount_there_is_counts_little(retail_players: Seats):
    async with retail_players() as player:
        one = player("a")
        await one.play_expert(CHANGE, TASKS.seed(CHANGE))
        honest = (await one.score())["parts"]["communication"]
        dump = " ".join(f"{cents / 100:.2f}" for cents in range(100, 20000, 100))
        one.messages.append({"role": "assistant", "content": dump[:1400]})
        assert honest == 1.0
        assert (await one.score())["parts"]["communication"] < 0.75


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


IDS = {
    "order_id": r"^W\d{5}$",
    "sku": r"^V\d{4}$",
    "new_sku": r"^V\d{4}$",
    "skus": r"^V\d{4}$",
    "product_id": r"^P\d{3}$",
    "payment_method_id": r"^(card|paypal|gift)_\d{4}$",
    "refund_to": r"^(card|paypal|gift)_\d{4}$",
    "user_id": r"^[a-z]+_[a-z]+_\d\d$",
}


async def _random_score(player: Any, task: str, *, informed: bool) -> float:
    """15 turns of one uniformly chosen policy tool each, with arguments that fit its schema.

    The informed player is signed in, uses ids that it has read where ids belong, and now and then reads to the user
    what it saw last.
    """
    rng, case = Random(task), make_case(task, TASKS.seed(task))
    await player.begin(task, case.seed)
    if informed:
        await player.call("find_user_by_email", email=case.customer.email)
        await player.call("list_orders")
    tools = [tool for tool in (await player.world.list_tools()).tools if not tool.meta]
    for _ in range(15):
        seen = " ".join(message["content"] for message in player.messages) if informed else ""
        if informed and rng.random() < 0.2:
            player.messages.append({"role": "assistant", "content": re.sub(r'[{}"\[\]]', " ", seen[-600:])})
            continue
        tool = rng.choice(tools)
        words = re.findall(r"\w+", seen)
        arguments = _value(rng, "", tool.input_schema, tool.input_schema.get("$defs", {}), words)
        await player.call(tool.name, **arguments)
    player.messages.append({"role": "assistant", "content": "Is there anything else?"})
    return (await player.score())["score"]


def _value(rng: Random, key: str, schema: dict[str, Any], defs: dict[str, Any], seen: list[str]) -> Any:
    if "$ref" in schema:
        return _value(rng, key, defs[schema["$ref"].rpartition("/")[2]], defs, seen)
    if "anyOf" in schema:
        return _value(rng, key, rng.choice(schema["anyOf"]), defs, seen)
    if "enum" in schema:
        return rng.choice(schema["enum"])
    match schema["type"]:
        case "object":
            return {name: _value(rng, name, item, defs, seen) for name, item in schema["properties"].items()}
        case "array":
            return [_value(rng, key, schema["items"], defs, seen) for _ in range(rng.randint(1, 3))]
        case "string":
            pattern = IDS.get(key, schema.get("pattern", r"\w{3}"))
            if fitting := sorted({word for word in seen if re.search(pattern, word)}):
                return rng.choice(fitting)
            letters = {"^[0-9]{5}$": string.digits, "^[A-Z]{2}$": string.ascii_uppercase}
            length = 2 if "{2}" in pattern else 5
            return "".join(rng.choices(letters.get(pattern, string.ascii_letters), k=length))
        case "number":
            return rng.uniform(1, 200)
        case "boolean":
            return rng.random() < 0.5
        case _:
            return None
