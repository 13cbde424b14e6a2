"""The short tasks, in which an order's state decides what can be done, or state and wish together."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from itertools import combinations
from statistics import fmean
from typing import Any

import pytest

from mcp_rollout.mcp_servers.kit import Split
from mcp_rollout.mcp_servers.retail.case import Case
from mcp_rollout.mcp_servers.retail.database import RETURN_DAYS
from mcp_rollout.mcp_servers.retail.short_tasks import (
    SHORT_TASKS,
    STATES,
    ShortSlice,
    make_short_case,
    part_of,
    state_of,
    wish_of,
)
from mcp_rollout.mcp_servers.retail.vocabulary import TELLING, VOCABULARIES, Part

pytestmark = pytest.mark.anyio
Seats = Callable[..., AbstractAsyncContextManager[Callable[[str], Any]]]
SLICES: tuple[ShortSlice, ...] = ("any", "fitting", "validation", "wish_any", "wish_fitting", "wish_validation")
SPLITS: tuple[Split, ...] = ("train", "test")
PARTS: tuple[Part, ...] = ("train", "validation", "test")


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
    async with retail_players(slice_="fitting") as player:
        for task in SHORT_TASKS["fitting"].names("test"):
            one = player(task)
            last = (await _expert(one, task))[-1]["content"]
            await one.begin(task, SHORT_TASKS["fitting"].seed(task))
            await one.call("list_orders")
            await one.say(last)
            assert (await one.score())["score"] == 0.0, last


@pytest.mark.parametrize("slice_", SLICES)
def test_train_and_test_share_no_task_and_no_seed(slice_: ShortSlice):
    tasks = SHORT_TASKS[slice_]
    train, test = (tasks.names(split) for split in ("train", "test"))
    assert not set(train) & set(test)
    assert not {tasks.seed(task) for task in train} & {tasks.seed(task) for task in test}


@pytest.mark.parametrize(("one", "other"), list(combinations(PARTS, 2)))
def test_two_parts_share_no_prompt_wording_name_product_number_or_day(one: Part, other: Part):
    ones, others = contents_of(one), contents_of(other)
    assert ones.keys() == others.keys()
    for kind in ones:
        assert ones[kind] and others[kind], kind
        assert not ones[kind] & others[kind], kind


def test_the_vocabulary_for_tests_is_that_of_one_split_alone():
    """So that settings can be chosen, and the warm-up tested, without seeing a task of the measurement."""
    splits = [(slice_, split) for slice_ in SLICES for split in SPLITS]
    assert [pair for pair in splits if part_of(*pair) == "test"] == [
        ("fitting", "test"),
        ("wish_fitting", "test"),
    ]
    assert ("validation", "test") in [pair for pair in splits if part_of(*pair) == "validation"]


def test_nearly_every_task_has_a_prompt_of_its_own():
    for slice_ in SLICES:
        for split in SPLITS:
            prompts = [case.opening for case in cases_of(slice_, split)]
            assert len(set(prompts)) >= 0.99 * len(prompts)


@pytest.mark.parametrize("slice_", SLICES)
def test_prompts_are_made_of_their_parts_vocabulary(slice_: ShortSlice):
    """So that what the tests above compare is all that a prompt contains."""
    for split in SPLITS:
        words = VOCABULARIES[part_of(slice_, split)]
        for case in cases_of(slice_, split):
            name = f"{case.customer.first_name} {case.customer.last_name}"
            rest = case.opening.replace(name, "{name}")
            wish = wish_of(case.task)
            wishes = [words.sentences[wish]] if wish else list(words.wishes.values())
            for phrases in (*wishes, words.greetings, words.introductions):
                # The longest first, since one phrase may be a part of another.
                phrase = next(each for each in sorted(phrases, key=len, reverse=True) if each in rest)
                rest = rest.replace(phrase, "{}", 1)
            assert rest == "{} {} {}" if wish else rest.removeprefix("{} {} ") in words.requests, case.opening


def test_the_blind_expert_takes_each_step_equally_often_in_each_state():
    """In the slice that the warm-up learns from, the state says nothing about the step."""
    pairs = Counter((state_of(case.task), case.expert().turns[1].calls[0].name) for case in cases_of("any", "train"))
    assert len(pairs) == 9 and len(set(pairs.values())) == 1


def test_the_blind_expert_takes_each_step_equally_often_for_each_state_and_wish():
    kinds = Counter((state_of(case.task), wish_of(case.task), step_of(case)) for case in cases_of("wish_any", "train"))
    assert len(kinds) == 3 * 2 * 4 and len(set(kinds.values())) == 1


@pytest.mark.parametrize("slice_", ["wish_fitting", "wish_validation"])
@pytest.mark.parametrize("split", SPLITS)
def test_in_each_state_two_wishes_want_different_steps_and_neither_tells_enough(slice_: ShortSlice, split: Split):
    cases = cases_of(slice_, split)
    steps = {(state_of(case.task), wish_of(case.task)): step_of(case) for case in cases}
    assert len(steps) == 6
    for state in STATES:
        assert steps[state, "out"] != steps[state, "news"]

    def served(known: Callable[[Case], object]) -> float:
        """The share that an agent serves which takes the most frequent step, given what it knows."""
        counts: dict[object, Counter[str]] = {}
        for case in cases:
            counts.setdefault(known(case), Counter())[step_of(case)] += 1
        return sum(max(steps.values()) for steps in counts.values()) / len(cases)

    assert served(lambda _: None) == 0.5
    assert served(lambda case: state_of(case.task)) == 0.5
    assert served(lambda case: wish_of(case.task)) == 0.5
    assert served(lambda case: (state_of(case.task), wish_of(case.task))) == 1.0


def test_a_sentence_has_one_of_the_words_that_tell_its_wish_and_each_part_has_all_of_them():
    for part in PARTS:
        for wish, sentences in VOCABULARIES[part].sentences.items():
            assert {word for sentence in sentences for word in telling(sentence)} == set(TELLING[wish])
            assert all(len(telling(sentence)) == 1 for sentence in sentences)
            ends = {re.search(rf"\b({'|'.join(TELLING[wish])})([^a-z]|$)", sentence) for sentence in sentences}
            assert {found[2] for found in ends if found} <= {" ", "."}
        others = VOCABULARIES[part].greetings + VOCABULARIES[part].introductions
        assert not any(telling(phrase) for phrase in others)


def telling(text: str) -> list[str]:
    return [word for words in TELLING.values() for word in words if re.search(rf"\b{word}\b", text)]


def step_of(case: Case) -> str:
    """The expert's second turn: the tool that it calls, or "tell"."""
    calls = case.expert().turns[1].calls
    return calls[0].name if calls else "tell"


@pytest.mark.parametrize("reason", ["ordered_by_mistake", "found_cheaper"])
async def test_a_cancellation_may_have_any_reason(retail_players: Seats, reason: str):
    async with retail_players(slice_="wish_fitting") as player:
        case = next(case for case in cases_of("wish_fitting", "test") if step_of(case) == "cancel_order")
        (order,) = case.database.orders
        one = player(case.task)
        await one.begin(case.task, SHORT_TASKS["wish_fitting"].seed(case.task))
        await one.call("cancel_order", order_id=order, reason=reason)
        await one.say("Your order is cancelled.")
        assert (await one.score())["score"] == 1.0


async def test_a_state_that_is_guessed_or_told_among_all_states_is_worth_nothing(retail_players: Seats):
    async with retail_players(slice_="wish_fitting") as player:
        told = [case.task for case in cases_of("wish_fitting", "test")[:6] if step_of(case) == "tell"]
        assert len(told) == 3
        for task in told:
            seed, state = SHORT_TASKS["wish_fitting"].seed(task), state_of(task)
            (order,) = make_short_case("wish_fitting", task, seed).database.orders
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
                one = player(f"{task} {number}")
                await one.begin(task, seed)
                for name, arguments in calls.items():
                    await one.call(name, **arguments)
                await one.say(f"Your order is {text}.")
                assert (await one.score())["score"] == score, (calls, text)


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("slice_", SLICES)
def test_the_state_of_a_task_is_that_of_its_order(slice_: ShortSlice, split: Split):
    for case in cases_of(slice_, split):
        (order,) = case.database.orders.values()
        assert state_of(case.task) == order.status


def cases_of(slice_: ShortSlice, split: Split) -> list[Case]:
    tasks = SHORT_TASKS[slice_]
    return [make_short_case(slice_, task, tasks.seed(task)) for task in tasks.names(split)]


def contents_of(part: Part) -> dict[str, set[Any]]:
    """What the tasks of a part, and the vocabulary that they are drawn from, contain."""
    words = VOCABULARIES[part]
    splits = [(slice_, split) for slice_ in SLICES for split in SPLITS if part_of(slice_, split) == part]
    cases = [case for slice_, split in splits for case in cases_of(slice_, split)]
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


async def _expert(player: Any, task: str) -> list[dict[str, Any]]:
    seed = SHORT_TASKS["fitting"].seed(task)
    return (await player.harness(player.world, "expert", task=task, seed=seed))["turns"]
