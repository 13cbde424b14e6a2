"""The short tasks, in which an order's state decides what can be done, or state and wish together."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import cache
from itertools import combinations
from statistics import fmean
from typing import Any

import pytest
from bare_players import Seats

from lab.worlds.shop.case import ShortCase
from lab.worlds.shop.short_tasks import SHORT_TASKS, STATES, ShortSlice, make_short_case, part_of, state_of, wish_of
from lab.worlds.shop.vocabulary import TELLING, VOCABULARIES, Part
from mcp_rollout.mcp_servers.kit import Split
from mcp_rollout.mcp_servers.retail.database import RETURN_DAYS

pytestmark = pytest.mark.anyio
PARTS: tuple[Part, ...] = ("train", "validation", "test")
SPLITS: list[tuple[ShortSlice, Split]] = [(slice_, split) for slice_ in SHORT_TASKS for split in ("train", "test")]
PLAYED = 24
"""Tasks of a slice that are played: each state with each wish and step."""


@cache
def cases_of(slice_: ShortSlice, split: Split) -> list[ShortCase]:
    tasks = SHORT_TASKS[slice_]
    return [make_short_case(slice_, task, tasks.seed(task)) for task in tasks.names(split)]


async def earned(players: Seats, slice_: ShortSlice, play: Callable[[Any, ShortCase], Awaitable[None]]) -> float:
    """The mean score of a way to play, on the first test tasks."""
    scores: list[float] = []
    async with players(slice_) as player:
        for case in cases_of(slice_, "test")[:PLAYED]:
            one: Any = player(case.task)
            await one.begin(case.task, case.seed)
            await play(one, case)
            scores.append((await one.score())["score"])
    return fmean(scores)


@pytest.mark.parametrize("slice_", SHORT_TASKS)
async def test_the_expert_serves_every_customer_and_trying_everything_or_nothing_serves_none(
    shop_players: Seats, slice_: ShortSlice
) -> None:
    async def expertly(one: Any, case: ShortCase) -> None:
        replies = await one.play_expert(case.task, case.seed)
        assert replies[-1]["done"] and sum(message["role"] == "assistant" for message in one.messages) <= 5

    async def silently(one: Any, _: ShortCase) -> None:
        await one.say("")

    async def thoroughly(one: Any, case: ShortCase) -> None:
        (order,) = case.database.orders
        await one.call("list_orders")
        await one.call("cancel_order", order_id=order, reason="no_longer_needed")
        results = [await one.call(name, order_id=order) for name in ("track_shipment", "check_return_window")]
        days = [re.findall(r"\d{4}-\d\d-\d\d", f"{result.structured_content}") for result in results]
        await one.say(f"Your order is cancelled, or else it is {next((found[-1] for found in days if found), '')}.")

    assert [await earned(shop_players, slice_, play) for play in (expertly, silently, thoroughly)] == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("step", ["cancel_order", "track_shipment", "check_return_window"])
async def test_one_step_for_every_order_is_a_choice_among_three(shop_players: Seats, step: str) -> None:
    async def always(one: Any, case: ShortCase) -> None:
        (order,) = case.database.orders
        reason = {"reason": "no_longer_needed"} if step == "cancel_order" else {}
        await one.call("list_orders")
        result = await one.call(step, order_id=order, **reason)
        days = [] if reason else re.findall(r"\d{4}-\d\d-\d\d", f"{result.structured_content}")
        await one.say(f"Your order is cancelled. {' '.join(days)}")

    assert await earned(shop_players, "fitting", always) == pytest.approx(1 / 3)


async def test_telling_the_state_of_every_order_serves_the_customers_for_whom_nothing_fits(shop_players: Seats) -> None:
    async def tell(one: Any, _: ShortCase) -> None:
        (order,) = (await one.call("list_orders")).structured_content["orders"]
        await one.say(f"Your order is {order['status']}.")

    assert await earned(shop_players, "wish_fitting", tell) == 0.5


async def test_the_right_day_is_worth_nothing_to_an_agent_that_did_not_look_it_up(shop_players: Seats) -> None:
    async def guess(one: Any, case: ShortCase) -> None:
        await one.call("list_orders")
        await one.say(case.expert().turns[-1].content)

    assert await earned(shop_players, "fitting", guess) == 0.0


async def test_a_cancellation_may_have_any_reason(shop_players: Seats) -> None:
    async with shop_players("wish_fitting") as player:
        case = next(case for case in cases_of("wish_fitting", "test") if step_of(case) == "cancel_order")
        (order,) = case.database.orders
        one = player(case.task)
        await one.begin(case.task, case.seed)
        await one.call("cancel_order", order_id=order, reason="found_cheaper")
        await one.say("Your order is cancelled.")
        assert (await one.score())["score"] == 1.0


async def test_a_state_that_is_guessed_or_told_among_all_states_is_worth_nothing(shop_players: Seats) -> None:
    async with shop_players("wish_fitting") as player:
        told = [case for case in cases_of("wish_fitting", "test")[:6] if step_of(case) == "tell"]
        assert len(told) == 3
        for case in told:
            state = state_of(case.task)
            (order,) = case.database.orders
            tried = {"track_shipment": {"order_id": order}}
            looked: dict[str, dict[str, str]] = {"list_orders": {}}
            hidden = {"list_orders": {"status": "cancelled"}}
            for number, (calls, text, score) in enumerate(
                (
                    ({}, state, 0.0),
                    (hidden, state, 0.0),
                    (looked, "pending shipped delivered", 0.0),
                    (looked | tried, state, 0.0),
                    (looked, state, 1.0),
                )
            ):
                one = player(f"{case.task} {number}")
                await one.begin(case.task, case.seed)
                for name, arguments in calls.items():
                    await one.call(name, **arguments)
                await one.say(f"Your order is {text}.")
                assert (await one.score())["score"] == score, (calls, text)


def test_no_two_tasks_have_a_seed_and_hardly_any_a_prompt_in_common() -> None:
    seeds = [case.seed for of in SPLITS for case in cases_of(*of)]
    assert len(set(seeds)) == len(seeds)
    for of in SPLITS:
        prompts = [case.opening for case in cases_of(*of)]
        assert len(set(prompts)) >= 0.99 * len(prompts)


def test_no_two_parts_share_a_prompt_wording_name_product_number_or_day() -> None:
    for one, other in combinations([contents_of(part) for part in PARTS], 2):
        for kind in one:
            assert one[kind] and other[kind] and not one[kind] & other[kind], kind


def test_the_vocabulary_for_tests_is_that_of_one_split_alone() -> None:
    """So that settings can be chosen, and the warm-up tested, without seeing a task of the measurement."""
    assert [of for of in SPLITS if part_of(*of) == "test"] == [("fitting", "test"), ("wish_fitting", "test")]
    assert part_of("validation", "test") == part_of("wish_validation", "test") == "validation"


def test_prompts_are_made_of_their_parts_vocabulary() -> None:
    """So that what the tests above compare is all that a prompt contains."""
    for of in SPLITS:
        words = VOCABULARIES[part_of(*of)]
        for case in cases_of(*of):
            name = f"{case.customer.first_name} {case.customer.last_name}"
            rest = case.opening.replace(name, "{name}")
            wish = wish_of(case.task)
            wishes = [words.sentences[wish]] if wish else list(words.wishes.values())
            for phrases in (*wishes, words.greetings, words.introductions):
                # The longest first, since one phrase may be a part of another.
                phrase = next(each for each in sorted(phrases, key=len, reverse=True) if each in rest)
                rest = rest.replace(phrase, "{}", 1)
            assert rest == "{} {} {}" if wish else rest.removeprefix("{} {} ") in words.requests, case.opening


@pytest.mark.parametrize(("slice_", "kinds"), [("any", 3 * 3), ("wish_any", 3 * 2 * 4)])
def test_the_blind_expert_takes_each_step_equally_often(slice_: ShortSlice, kinds: int) -> None:
    """In the slices that a warm-up learns from, state and wish say nothing about the step."""
    cases = cases_of(slice_, "train")
    counted = Counter((state_of(case.task), wish_of(case.task), step_of(case)) for case in cases)
    assert len(counted) == kinds and len(set(counted.values())) == 1


@pytest.mark.parametrize("slice_", ["wish_fitting", "wish_validation"])
def test_in_each_state_two_wishes_want_different_steps_and_neither_tells_enough(slice_: ShortSlice) -> None:
    for split in ("train", "test"):
        cases = cases_of(slice_, split)
        steps = {(state_of(case.task), wish_of(case.task)): step_of(case) for case in cases}
        assert len(steps) == 6
        assert all(steps[state, "out"] != steps[state, "news"] for state in STATES)
        knowing: list[Callable[[ShortCase], object]] = [
            lambda _: None,
            lambda case: state_of(case.task),
            lambda case: wish_of(case.task),
            lambda case: (state_of(case.task), wish_of(case.task)),
        ]
        assert [served(cases, known) for known in knowing] == [0.5, 0.5, 0.5, 1.0]


def served(cases: list[ShortCase], known: Callable[[ShortCase], object]) -> float:
    """The share that an agent serves which takes the most frequent step, given what it knows."""
    counts: dict[object, Counter[str]] = {}
    for case in cases:
        counts.setdefault(known(case), Counter())[step_of(case)] += 1
    return sum(max(steps.values()) for steps in counts.values()) / len(cases)


def test_a_sentence_has_one_of_the_words_that_tell_its_wish_and_each_part_has_all_of_them() -> None:
    for part in PARTS:
        for wish, sentences in VOCABULARIES[part].sentences.items():
            assert {word for sentence in sentences for word in telling(sentence)} == set(TELLING[wish])
            assert all(len(telling(sentence)) == 1 for sentence in sentences)
            ends = {re.search(rf"\b({'|'.join(TELLING[wish])})([^a-z]|$)", sentence) for sentence in sentences}
            assert {found[2] for found in ends if found} <= {" ", "."}
        others = VOCABULARIES[part].greetings + VOCABULARIES[part].introductions
        assert not any(telling(phrase) for phrase in others)


def test_the_state_of_a_task_is_that_of_its_order() -> None:
    for case in (case for of in SPLITS for case in cases_of(*of)):
        (order,) = case.database.orders.values()
        assert state_of(case.task) == order.status


def telling(text: str) -> list[str]:
    return [word for words in TELLING.values() for word in words if re.search(rf"\b{word}\b", text)]


def step_of(case: ShortCase) -> str:
    """The expert's second turn: the tool that it calls, or "tell"."""
    calls = case.expert().turns[1].calls
    return calls[0].name if calls else "tell"


def contents_of(part: Part) -> dict[str, set[Any]]:
    """What the tasks of a part, and the vocabulary that they are drawn from, contain."""
    words = VOCABULARIES[part]
    cases = [case for of in SPLITS if part_of(*of) == part for case in cases_of(*of)]
    orders = [order for case in cases for order in case.database.orders.values()]
    expected = {order.shipment.expected_on for order in orders if order.shipment}
    returnable = {order.delivered_on + timedelta(days=RETURN_DAYS) for order in orders if order.delivered_on}
    return {
        "prompts": {case.opening for case in cases},
        "greetings": set(words.greetings),
        "introductions": set(words.introductions),
        "wishes": {wish for wishes in words.wishes.values() for wish in wishes},
        "requests": set(words.requests),
        "sentences": {sentence for sentences in words.sentences.values() for sentence in sentences},
        "closings": {case.closing for case in cases},
        "first names": {case.customer.first_name for case in cases},
        "last names": {case.customer.last_name for case in cases},
        "products": {line.name for order in orders for line in order.lines},
        "order numbers": {order.order_id for order in orders},
        "days": expected | returnable,
    }
