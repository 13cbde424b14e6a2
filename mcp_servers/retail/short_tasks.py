"""Short tasks, for tiny models: a signed-in customer with one order and one wish, which takes one step.

The order's state decides which step is possible, and only a look at the order tells it: a pending order can be
cancelled, a shipped one tracked, a delivered one returned. The customer names all three. In the slice `any` they accept
the first step that the agent tries, even if the shop refuses it, and the expert picks one at random; in the slice
`fitting` they want the possible one. In both, an agent that tries a second step scores 0. The slice `validation` is
`fitting` with a test split of other wordings, names and numbers, for choosing settings on. The tasks' names begin with
`counter-`.
"""

from __future__ import annotations

from datetime import timedelta
from random import Random
from typing import Literal

from mcp_servers.kit import Split, Splits
from mcp_servers.kit.records import Call
from mcp_servers.retail.case import Case
from mcp_servers.retail.database import RETURN_DAYS, TODAY, Order, OrderStatus
from mcp_servers.retail.generate import make_empty_database
from mcp_servers.retail.script import CANNOT, Draft, Look, Request, Say, Statement, Write, by_any, call, states
from mcp_servers.retail.shop import Shop
from mcp_servers.retail.vocabulary import VOCABULARIES, Part, Step, Vocabulary

ShortSlice = Literal["any", "fitting", "validation"]

SHORT_TASKS: dict[ShortSlice, Splits] = {
    "any": Splits("counter-any", {"train": 720, "test": 45}, {"train": 200_000, "test": 250_000}),
    "fitting": Splits("counter-fitting", {"train": 960, "test": 201}, {"train": 300_000, "test": 350_000}),
    "validation": Splits("counter-validation", {"train": 45, "test": 201}, {"train": 400_000, "test": 450_000}),
}
"""The tasks of each slice, which cycle through the three states of an order."""

STATES: tuple[OrderStatus, ...] = ("pending", "shipped", "delivered")

_THOUGHTS: dict[OrderStatus, tuple[str, dict[Step, str]]] = {
    "pending": (
        "It is pending: {}.",
        {"cancel": "cancel order", "track": "track parcel", "return": "check window"},
    ),
    "shipped": (
        "It is shipped; {}.",
        {"cancel": "cancelling order", "track": "tracking parcel", "return": "checking window"},
    ),
    "delivered": (
        "It is delivered. {}.",
        {"cancel": "Cancel order", "track": "Track parcel", "return": "Check window"},
    ),
}
"""The expert's thought before its step. Each state has its own verbs, so a model has to distinguish the states to
imitate them. The thought determines the step, so that a small model soon learns to act on its thought."""
_FITTING: dict[OrderStatus, Step] = {"pending": "cancel", "shipped": "track", "delivered": "return"}
_HINT = "That is not what I asked for."


def slice_of(task: str) -> ShortSlice | None:
    """The slice that a task's name belongs to; None for the other tasks."""
    return next((slice_ for slice_, tasks in SHORT_TASKS.items() if task.startswith(f"{tasks.prefix}-")), None)


def state_of(task: str) -> OrderStatus:
    """The state of a task's order.

    Raises:
        LookupError: There is no such task.
    """
    slice_ = slice_of(task)
    if slice_ is None:
        raise LookupError(f"{task!r} is not a short task")
    _, index = SHORT_TASKS[slice_].parse(task)
    return STATES[index % len(STATES)]


def part_of(slice_: ShortSlice, split: Split) -> Part:
    """The vocabulary of a slice's split. That for tests is of `fitting` alone."""
    return "validation" if split == "test" and slice_ != "fitting" else split


def make_short_case(slice_: ShortSlice, task: str, seed: int) -> Case:
    """The database, the customer and the wish of a task, the same in every process.

    Raises:
        LookupError: There is no such task.
    """
    split, index = SHORT_TASKS[slice_].parse(task)
    words = VOCABULARIES[part_of(slice_, split)]
    rng = Random(f"{task}/{seed}")
    database = make_empty_database(rng, words.stock, users=1, products=2)
    (customer,) = database.users.values()
    draft = Draft(rng=rng, database=database, customer=customer)
    state = STATES[index % len(STATES)]
    order = _small_order(draft, state, words)
    wishes = [rng.choice(words.wishes[step]) for step in rng.sample(list(words.wishes), len(words.wishes))]
    name = f"{customer.first_name} {customer.last_name}"
    wish = f"{rng.choice(words.introductions).format(name=name)} {rng.choice(words.requests).format(*wishes)}"
    requests = {step: _request(draft, order, step, wish) for step in words.wishes}
    # In the slice `any` all pairs of a state and a step are equally frequent, so the state does not predict the step.
    step = list(requests)[index // len(STATES) % len(requests)] if slice_ == "any" else _FITTING[state]
    return Case(
        task=task,
        seed=seed,
        database=database,
        customer=customer,
        requests=(requests.pop(step),),
        alternatives=tuple(requests.values()) if slice_ == "any" else (),
        identity_told=True,
        by_email=True,
        greeting=draft.say(*words.greetings),
        closing=draft.say(*words.closings),
        is_short=True,
    )


def _small_order(draft: Draft, state: OrderStatus, words: Vocabulary) -> Order:
    """An order with one line, and with a number and days of the part's own."""
    orders, days = draft.database.orders, draft.rng.choice(words.days)
    order = draft.order(state, lines=1, delivered_days_ago=RETURN_DAYS - days if state == "delivered" else None)
    if order.shipment is not None:
        order.shipment.expected_on = TODAY + timedelta(days=days)
    del orders[order.order_id]
    order.order_id = f"W{draft.rng.choice(words.numbers)}"
    orders[order.order_id] = order
    return order


def _request(draft: Draft, order: Order, step: Step, wish: str) -> Request:
    look = Look(thinking="I look at the order.", calls=(call("list_orders"),))
    thought, intents = _THOUGHTS[order.status]
    thinking = thought.format(intents[step])
    made = _call(order, step)
    act = (
        Write(thinking=thinking, call=made)
        if _FITTING[order.status] == step == "cancel"
        else Look(thinking=thinking, calls=(made,))
    )
    text, statement = _answer(draft, order, step)
    say = Say(thinking="", text=text, cues=statement.patterns, hint=_HINT)
    return Request(kind="change", text=wish, turns=(look, act, say), statements=(statement,))


def _call(order: Order, step: Step) -> Call:
    match step:
        case "cancel":
            return call("cancel_order", order_id=order.order_id, reason="no_longer_needed")
        case "track":
            return call("track_shipment", order_id=order.order_id)
        case "return":
            return call("check_return_window", order_id=order.order_id)


def _answer(draft: Draft, order: Order, step: Step) -> tuple[str, Statement]:
    """The expert's message after the step, and what it has to state."""
    if _FITTING[order.status] != step:
        why = Statement(patterns=(CANNOT, rf"\b{order.status}\b"), is_value=False)
        return f"I am sorry, that is not possible: your order is {order.status}.", why
    match step:
        case "cancel":
            return "Your order is cancelled.", Statement(patterns=(r"\bcancell?ed\b",), is_value=False)
        case "track":
            assert order.shipment is not None
            day = order.shipment.expected_on
            return f"Your order will arrive on {day}.", states(day, by_any(order.order_id, "track_shipment"))
        case "return":
            day = Shop(database=draft.database).return_window(order).last_day
            stated = states(day, by_any(order.order_id, "check_return_window"))
            return f"You can return your order until {day}.", stated
