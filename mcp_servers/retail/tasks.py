"""The tasks: a customer's requests, their order, and what the customer tells without being asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Literal

from mcp_rollout.mcp_servers.kit import Splits
from mcp_rollout.mcp_servers.retail import requests_change, requests_other
from mcp_rollout.mcp_servers.retail.case import Case
from mcp_rollout.mcp_servers.retail.generate import make_database
from mcp_rollout.mcp_servers.retail.requests_reconsider import CHANGES_OF_MIND, OTHER_WAYS, WITHDRAWALS
from mcp_rollout.mcp_servers.retail.script import Change, Draft, Request

TASKS = Splits("retail", {"train": 120, "test": 60})

Maker = Callable[[Draft], Request]
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
    """A kind of task."""

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
"""A split's tasks cycle through these, in an order that mixes short and long ones. The first needs 15 turns."""

CHANGES: tuple[Callable[[Draft], Change], ...] = (
    requests_change.cancel,
    requests_change.order_address,
    requests_change.modify_items,
    requests_change.payment,
    requests_change.return_some,
    requests_change.exchange,
    requests_change.account_address,
)
QUESTIONS: tuple[Maker, ...] = (
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


def make_case(task: str, seed: int) -> Case:
    """The database, the customer and the requests of a task, the same in every process.

    The task determines the kinds of requests, the seed the customer and the requests' details.

    Raises:
        LookupError: There is no such task.
    """
    _, index = TASKS.parse(task)
    shape = SHAPES[index % len(SHAPES)]
    makers = _makers(shape, Random(f"{task}/requests"), sum(divmod(index, len(SHAPES))))
    rng = Random(f"{task}/{seed}")
    database = make_database(rng)
    draft = Draft(rng=rng, database=database, customer=rng.choice(list(database.users.values())))
    requests = tuple(maker(draft) for maker in makers)
    return Case(
        task=task,
        seed=seed,
        database=database,
        customer=draft.customer,
        requests=requests,
        identity_told=shape.identity == "told",
        by_email=shape.identity == "told" or rng.random() < 0.5,
        greeting=draft.say("Hello!", "Hi there,", "Good morning.", "Hello, I hope you can help me."),
        closing=draft.say("No, that is everything. Thank you!", "Thanks, that was all. Goodbye!", "Great, thank you."),
    )


def _makers(shape: Shape, rng: Random, variation: int) -> list[Maker]:
    """Draws a maker for each slot of the shape.

    Args:
        variation: Selects the kind of reconsidering, so that the few rounds of the test split have most kinds.
    """
    changes = rng.sample(CHANGES, len(CHANGES))
    questions = rng.sample(QUESTIONS, len(QUESTIONS))

    def pick(slot: Slot) -> Maker:
        match slot:
            case "change":
                change = changes.pop()
                return lambda draft: change(draft).request()
            case "asks address":
                return requests_change.order_address_when_asked
            case "withdrawn":
                return WITHDRAWALS[variation % len(WITHDRAWALS)]
            case "other way":
                return OTHER_WAYS[variation % len(OTHER_WAYS)]
            case "changed mind":
                return CHANGES_OF_MIND[variation % len(CHANGES_OF_MIND)]
            case "question":
                return questions.pop()
            case "price":
                return requests_other.price_of
            case "refusal":
                return rng.choice(REFUSALS)
            case "insists":
                refusal = rng.choice(REFUSALS)
                return lambda draft: refusal(draft, insists=True)
            case "transfer":
                return requests_other.transfer

    return [pick(slot) for slot in shape.slots]
