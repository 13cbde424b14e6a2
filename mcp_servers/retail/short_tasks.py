"""Short tasks, for tiny models: a signed-in customer with one order and one wish, which takes one step.

The order's state decides which step is possible, and only a look at the order tells it: a pending order can be
cancelled, a shipped one tracked, a delivered one returned. The customer names all three. In the slice `any` they accept
whichever the agent tries, a refusal included, and the expert picks one at random; in the slice `fitting` they want the
possible one. In both, an agent that tries a second step scores 0. The tasks' names begin with `counter-`.
"""

from __future__ import annotations

from datetime import timedelta
from random import Random
from typing import Literal

from mcp_servers.kit import Splits
from mcp_servers.kit.records import Call
from mcp_servers.retail.case import Case
from mcp_servers.retail.database import RETURN_DAYS, TODAY, Order, OrderStatus
from mcp_servers.retail.generate import make_database
from mcp_servers.retail.script import CANNOT, Draft, Look, Request, Say, Statement, Write, by_any, call, states
from mcp_servers.retail.shop import Shop

ShortSlice = Literal["any", "fitting"]

SHORT_TASKS: dict[ShortSlice, Splits] = {
    "any": Splits("counter-any", {"train": 360, "test": 45}, {"train": 200_000, "test": 250_000}),
    "fitting": Splits("counter-fitting", {"train": 240, "test": 60}, {"train": 300_000, "test": 350_000}),
}
"""The tasks of each slice, which cycle through the three states of an order."""

STATES: tuple[OrderStatus, ...] = ("pending", "shipped", "delivered")
Step = Literal["cancel", "track", "return"]

_WISHES: dict[Step, str] = {
    "cancel": "cancel my order",
    "track": "tell me when my order will arrive",
    "return": "tell me until when I can return my order",
}
_INTENT: dict[Step, str] = {"cancel": "cancel it", "track": "track it", "return": "check its return window"}
_FITTING: dict[OrderStatus, Step] = {"pending": "cancel", "shipped": "track", "delivered": "return"}
_NUMBER = "W1"
_DAYS_LEFT = 9
"""Days until a shipment arrives, or until the return window of a delivered order closes."""
_HINT = "That is not what I asked for."


def slice_of(task: str) -> ShortSlice | None:
    """The slice that a task's name belongs to; None for the other tasks."""
    return next((slice_ for slice_, tasks in SHORT_TASKS.items() if task.startswith(f"{tasks.prefix}-")), None)


def make_short_case(slice_: ShortSlice, task: str, seed: int) -> Case:
    """The database, the customer and the wish of a task, the same in every process.

    Raises:
        LookupError: There is no such task.
    """
    _, index = SHORT_TASKS[slice_].parse(task)
    rng = Random(f"{task}/{seed}")
    database = make_database(rng)
    customer = rng.choice(list(database.users.values()))
    for order in database.orders_of(customer):
        del database.orders[order.order_id]
    draft = Draft(rng=rng, database=database, customer=customer)
    state = STATES[index % len(STATES)]
    order = _small_order(draft, state)
    first, second, third = rng.sample(list(_WISHES.values()), 3)
    wish = f"Please {first}, {second} or {third}, whichever fits."
    requests = {step: _request(draft, order, step, wish) for step in _WISHES}
    # Drawn, because the states cycle: a step that cycled with them would fit the state.
    step = rng.choice(list(_WISHES)) if slice_ == "any" else _FITTING[state]
    return Case(
        task=task,
        seed=seed,
        database=database,
        customer=customer,
        requests=(requests.pop(step),),
        alternatives=tuple(requests.values()) if slice_ == "any" else (),
        identity_told=True,
        by_email=True,
        greeting=draft.say("Hello!", "Hi there,", "Good morning."),
        closing=draft.say("Thank you!", "Thanks, that was all."),
        is_short=True,
    )


def _small_order(draft: Draft, state: OrderStatus) -> Order:
    """An order with one line, and with the same number and days in every database.

    These tasks measure the decision, and a tiny model learns last to copy numbers.
    """
    orders, days = draft.database.orders, _DAYS_LEFT
    order = draft.order(state, lines=1, delivered_days_ago=RETURN_DAYS - days if state == "delivered" else None)
    if order.shipment is not None:
        order.shipment.expected_on = TODAY + timedelta(days=days)
    del orders[order.order_id]
    order.order_id = _NUMBER
    orders[order.order_id] = order
    return order


def _request(draft: Draft, order: Order, step: Step, wish: str) -> Request:
    look = Look(thinking="I look at the order.", calls=(call("list_orders"),))
    thinking = f"{order.order_id} is {order.status}: {_INTENT[step]}."
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
