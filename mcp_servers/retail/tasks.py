"""The tasks: which requests a customer has, in which order, and how much they tell by themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Literal

from mcp_servers.kit import Split
from mcp_servers.retail import requests_change, requests_items, requests_other
from mcp_servers.retail.case import Case
from mcp_servers.retail.counter import counter_seed, is_counter_task, make_counter_case
from mcp_servers.retail.generate import make_world
from mcp_servers.retail.parts import Change, Part
from mcp_servers.retail.requests_reconsider import CHANGES_OF_MIND, OTHER_WAYS, WITHDRAWALS
from mcp_servers.retail.story import Story

SIZES: dict[Split, int] = {"train": 120, "test": 60}
"""Number of tasks per split."""

Request = Callable[[Story], Part]
Slot = Literal[
    "change",
    "asks address",
    "withdrawn",
    "other way",
    "changed mind",
    "question",
    "price",
    "refusal",
    "insists",
    "transfer",
]


@dataclass(frozen=True, slots=True)
class Shape:
    """What all tasks of one kind share."""

    identity: Literal["told", "asked"]
    """Whether the opening says who the customer is, or the agent has to ask."""
    slots: tuple[Slot, ...]


SHAPES: tuple[Shape, ...] = (
    Shape("asked", ("change", "change", "change")),
    Shape("told", ("question",)),
    Shape("told", ("change",)),
    Shape("told", ("price",)),
    Shape("told", ("changed mind",)),
    Shape("asked", ("change", "question")),
    Shape("told", ("refusal",)),
    Shape("told", ("withdrawn",)),
    Shape("asked", ("change", "question", "change", "question")),
    Shape("asked", ("question",)),
    Shape("told", ("insists", "question")),
    Shape("told", ("transfer",)),
    Shape("told", ("change", "change", "refusal")),
    Shape("asked", ("other way", "question")),
    Shape("told", ("asks address", "question")),
    Shape("told", ("changed mind", "change", "insists")),
    Shape("asked", ("refusal", "change")),
    Shape("told", ("change", "insists", "change", "question")),
    Shape("told", ("withdrawn", "other way")),
    Shape("told", ("change", "change")),
)
"""Taken in turn by a split's tasks, so that each beginning of the list has short and long ones. The first needs the
full 15 assistant turns."""

CHANGES: tuple[Callable[[Story], Change], ...] = (
    requests_change.cancel,
    requests_change.order_address,
    requests_items.modify_items,
    requests_change.payment,
    requests_items.return_some,
    requests_items.exchange,
    requests_change.account_address,
)
QUESTIONS: tuple[Request, ...] = (
    requests_other.where_is_it,
    requests_other.price_of,
    requests_other.until_when,
    requests_other.how_much,
)
REFUSALS = (
    requests_other.cancel_shipped,
    requests_other.return_late,
    requests_other.exchange_again,
    requests_other.for_a_friend,
    requests_other.discount,
)


def task_names(split: Split) -> list[str]:
    return [f"retail-{split}-{index:04d}" for index in range(SIZES[split])]


def default_seed(task: str) -> int:
    """The seed that `tasks` lists with a task; the splits' seeds do not overlap either."""
    if is_counter_task(task):
        return counter_seed(task)
    split, index = _parse(task)
    return index + (100_000 if split == "test" else 0)


def make_case(task: str, seed: int) -> Case:
    """The world, the customer and the requests of a task: the same in every process.

    The task's name says what is asked for, the seed who asks and about what.

    Raises:
        LookupError: There is no such task.
    """
    if is_counter_task(task):
        return make_counter_case(task, seed)
    _, index = _parse(task)
    shape = SHAPES[index % len(SHAPES)]
    requests = _requests(shape, Random(f"{task}/requests"), sum(divmod(index, len(SHAPES))))
    rng = Random(f"{task}/{seed}")
    world = make_world(rng)
    story = Story(rng=rng, world=world, customer=rng.choice(list(world.users.values())))
    parts = tuple(request(story) for request in requests)
    return Case(
        task=task,
        seed=seed,
        world=world,
        customer=story.customer,
        parts=parts,
        identity_told=shape.identity == "told",
        by_email=shape.identity == "told" or rng.random() < 0.5,
        greeting=story.say("Hello!", "Hi there,", "Good morning.", "Hello, I hope you can help me."),
        closing=story.say("No, that is everything. Thank you!", "Thanks, that was all. Goodbye!", "Great, thank you."),
    )


def _requests(shape: Shape, rng: Random, turn: int) -> list[Request]:
    """`turn`: which kind of reconsidering it is, so that even the three rounds of the test split have most of them."""
    changes = rng.sample(CHANGES, len(CHANGES))
    questions = rng.sample(QUESTIONS, len(QUESTIONS))

    def pick(slot: Slot) -> Request:
        match slot:
            case "change":
                change = changes.pop()
                return lambda story: change(story).part()
            case "asks address":
                return requests_change.order_address_when_asked
            case "withdrawn":
                return WITHDRAWALS[turn % len(WITHDRAWALS)]
            case "other way":
                return OTHER_WAYS[turn % len(OTHER_WAYS)]
            case "changed mind":
                return CHANGES_OF_MIND[turn % len(CHANGES_OF_MIND)]
            case "question":
                return questions.pop()
            case "price":
                return requests_other.price_of
            case "refusal":
                return rng.choice(REFUSALS)
            case "insists":
                refusal = rng.choice(REFUSALS)
                return lambda story: refusal(story, insists=True)
            case "transfer":
                return requests_other.transfer

    return [pick(slot) for slot in shape.slots]


def _parse(task: str) -> tuple[Split, int]:
    for split, size in SIZES.items():
        number = task.removeprefix(f"retail-{split}-")
        if number.isascii() and number.isdigit() and len(number) == 4 and int(number) < size:
            return split, int(number)
    raise LookupError(f"there is no task {task!r} here; the tool `tasks` lists them")
