"""Short tasks, for tiny models: a signed-in customer with one order and one wish, which takes one step.

The order's state decides which step is possible, and only a look at the order tells it: a pending order can be
cancelled, a shipped one tracked, a delivered one returned. The customer names all three. In the slice `any` they accept
the first step that the agent tries, even if the shop refuses it, and the expert picks one at random; in the slice
`fitting` they want the possible one. In both, an agent that tries a second step scores 0. The slice `validation` is
`fitting` with a test split of other wordings, names and numbers, for choosing settings on.

In the slices `wish_any`, `wish_fitting` and `wish_validation` the customer names no step. They want to be out of the
purchase or to know about it, in words of which one tells. `wish_any` accepts each of four steps, as `any` does. In the
other two wish and state decide: in each state two wishes want different things, and an agent that reads one of them
alone serves at most half of the customers. Where the order's state is to be told, trying any step scores 0.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from random import Random
from typing import Literal

from lab.worlds.shop.case import ShortCase
from lab.worlds.shop.vocabulary import VOCABULARIES, Part, Step, Vocabulary, Wish
from mcp_rollout.mcp_servers.kit import Split, Splits
from mcp_rollout.mcp_servers.kit.records import Call
from mcp_rollout.mcp_servers.retail.database import RETURN_DAYS, TODAY, Order, OrderStatus
from mcp_rollout.mcp_servers.retail.generate import make_empty_database
from mcp_rollout.mcp_servers.retail.script import (
    CANNOT,
    Draft,
    Look,
    Request,
    Say,
    Statement,
    Turn,
    Write,
    by_any,
    call,
    states,
)
from mcp_rollout.mcp_servers.retail.shop import Shop

ShortSlice = Literal["any", "fitting", "validation", "wish_any", "wish_fitting", "wish_validation"]

SHORT_TASKS: dict[ShortSlice, Splits] = {
    "any": Splits("counter-any", {"train": 720, "test": 45}, {"train": 200_000, "test": 250_000}),
    "fitting": Splits("counter-fitting", {"train": 960, "test": 201}, {"train": 300_000, "test": 350_000}),
    "validation": Splits("counter-validation", {"train": 45, "test": 201}, {"train": 400_000, "test": 450_000}),
    "wish_any": Splits("wish-any", {"train": 720, "test": 48}, {"train": 500_000, "test": 550_000}),
    "wish_fitting": Splits("wish-fitting", {"train": 960, "test": 198}, {"train": 600_000, "test": 650_000}),
    "wish_validation": Splits("wish-validation", {"train": 48, "test": 198}, {"train": 700_000, "test": 750_000}),
}
"""The tasks of each slice, which cycle through the three states of an order."""

STATES: tuple[OrderStatus, ...] = ("pending", "shipped", "delivered")
WISHES: tuple[Wish, ...] = ("out", "news")

_STATED: dict[OrderStatus, str] = {
    "pending": "It is pending: {verb} {what}.",
    "shipped": "It is shipped; {gerund} {what}.",
    "delivered": "It is delivered. {capital} {what}.",
}
_INTENTS: dict[Wish, dict[Step, tuple[str, str, str]]] = {
    "out": {
        "cancel": ("cancel", "cancelling", "order"),
        "track": ("track", "tracking", "parcel"),
        "return": ("check", "checking", "window"),
        "tell": ("tell", "telling", "state"),
    },
    "news": {
        "cancel": ("drop", "dropping", "order"),
        "track": ("trace", "tracing", "parcel"),
        "return": ("verify", "verifying", "window"),
        "tell": ("report", "reporting", "state"),
    },
}
"""The expert's thought before its step. Each state has its own forms of verbs, and each wish its own verbs, so a model
has to distinguish both to imitate them. The thought determines the step, so that a small model soon learns to act on
its thought."""
_FITTING: dict[OrderStatus, Step] = {"pending": "cancel", "shipped": "track", "delivered": "return"}
"""The step that is possible."""
_WISHED: dict[OrderStatus, Wish] = {"pending": "out", "shipped": "news", "delivered": "out"}
"""The wish that this step serves; for the other one the agent tells the order's state."""
_STEPS: tuple[Step, ...] = ("cancel", "track", "return", "tell")
_HINT = "That is not what I asked for."


def state_of(task: str) -> OrderStatus:
    """The state of a task's order.

    Raises:
        LookupError: There is no such task.
    """
    _, index = _parse(task)
    return STATES[index % len(STATES)]


def wish_of(task: str) -> Wish | None:
    """The wish of a task's customer; None where they name the steps.

    Raises:
        LookupError: There is no such task.
    """
    slice_, index = _parse(task)
    if slice_ in ("any", "fitting", "validation"):
        return None
    # In `wish_any` all triples of state, wish and step are equally frequent, else all pairs of state and wish.
    same = len(STATES) * (len(_STEPS) if slice_ == "wish_any" else 1)
    return WISHES[index // same % len(WISHES)]


def _parse(task: str) -> tuple[ShortSlice, int]:
    """The slice of a task, and its number."""
    for slice_, tasks in SHORT_TASKS.items():
        if task.startswith(f"{tasks.prefix}-"):
            return slice_, tasks.parse(task)[1]
    raise LookupError(f"{task!r} is not a short task")


def part_of(slice_: ShortSlice, split: Split) -> Part:
    """The vocabulary of a slice's split. That for tests is of `fitting` and `wish_fitting` alone."""
    return "validation" if split == "test" and slice_ not in ("fitting", "wish_fitting") else split


def short_case(task: str, seed: int) -> ShortCase:
    """`make_short_case` of the slice that the task's name belongs to."""
    return make_short_case(_parse(task)[0], task, seed)


def make_short_case(slice_: ShortSlice, task: str, seed: int) -> ShortCase:
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
    state = state_of(task)
    order = _small_order(draft, state, words)
    wish = wish_of(task)
    steps = tuple(words.wishes) if wish is None else _STEPS
    named = [] if wish else [rng.choice(words.wishes[step]) for step in rng.sample(steps, len(steps))]
    introduction = rng.choice(words.introductions).format(name=f"{customer.first_name} {customer.last_name}")
    asked = rng.choice(words.sentences[wish]) if wish else rng.choice(words.requests).format(*named)
    requests = {step: _request(draft, order, step, wish, f"{introduction} {asked}") for step in steps}
    # In the slices `any` and `wish_any` the state, or state and wish, do not predict the step.
    is_any = slice_ in ("any", "wish_any")
    step = steps[index // len(STATES) % len(steps)] if is_any else _step(state, wish)
    return ShortCase(
        task=task,
        seed=seed,
        database=database,
        customer=customer,
        requests=(requests.pop(step),),
        alternatives=tuple(requests.values()) if is_any else (),
        identity_told=True,
        by_email=True,
        greeting=draft.say(*words.greetings),
        closing=draft.say(*words.closings),
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


def _step(state: OrderStatus, wish: Wish | None) -> Step:
    """The step that fits."""
    return _FITTING[state] if wish in (None, _WISHED[state]) else "tell"


def _request(draft: Draft, order: Order, step: Step, wish: Wish | None, asked: str) -> Request:
    # What the customer wants is thought again before the step, next to the state, for a model that copies badly.
    wanted = f"They want {wish}. " if wish else ""
    look = Look(thinking=f"{wanted}I look at the order.", calls=(call("list_orders"),))
    # Customers who name the steps have the verbs of one wish.
    verb, gerund, what = _INTENTS[wish or "out"][step]
    stated = _STATED[order.status].format(verb=verb, gerund=gerund, capital=verb.capitalize(), what=what)
    thinking = wanted + stated
    text, statement = _answer(draft, order, step)
    say = Say(thinking="", text=text, cues=statement.patterns, hint=_HINT)
    turns: tuple[Turn, ...]
    if step == "tell":
        turns = (look, replace(say, thinking=thinking))
    else:
        made = _call(order, step)
        is_change = _FITTING[order.status] == step == "cancel"
        act = Write(thinking=thinking, call=made) if is_change else Look(thinking=thinking, calls=(made,))
        turns = (look, act, say)
    return Request(kind="change", text=asked, turns=turns, statements=(statement,))


def _call(order: Order, step: Literal["cancel", "track", "return"]) -> Call:
    match step:
        case "cancel":
            return call("cancel_order", order_id=order.order_id, reason="no_longer_needed")
        case "track":
            return call("track_shipment", order_id=order.order_id)
        case "return":
            return call("check_return_window", order_id=order.order_id)


def _answer(draft: Draft, order: Order, step: Step) -> tuple[str, Statement]:
    """The expert's message after the step, and what it has to state."""
    if step == "tell":
        others = "|".join(state for state in STATES if state != order.status)
        alone = rf"(?s)^(?!.*\b(?:{others})\b).*\b{order.status}\b"
        seen = by_any(order.order_id, "list_orders")
        return f"Your order is {order.status}.", Statement(patterns=(alone,), is_value=False, looked_up=(seen,))
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
