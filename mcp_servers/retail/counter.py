"""The counter: a slice of the shop for short trajectories. One signed-in customer, one order, one wish, one reply.

What can be done hangs on the order's state alone, which only a look at it tells: a pending order can be cancelled, a
shipped one tracked, a delivered one returned. The customer names all three. In the slice `any` they are content with
whichever the agent tries, a refusal included, and the expert picks one blindly; in the slice `fitting` they want the
one that is possible. In both, an agent that tries a second step earns nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from random import Random
from typing import Literal

from mcp_servers.kit import Call, Split
from mcp_servers.retail.case import Case
from mcp_servers.retail.desk import Desk
from mcp_servers.retail.generate import make_world
from mcp_servers.retail.parts import CANNOT, Look, Part, Say, Telling, Write, by_any, call, told
from mcp_servers.retail.story import Story
from mcp_servers.retail.world import RETURN_DAYS, TODAY, Order, OrderStatus

CounterSlice = Literal["any", "fitting"]

SIZES: dict[CounterSlice, dict[Split, int]] = {
    "any": {"train": 360, "test": 45},
    "fitting": {"train": 240, "test": 60},
}
"""Number of tasks by slice and split; the three states of an order take turns."""

COUNTER_POLICY = """\
You serve a signed-in customer of a small shop who has one order. Look at it first, then do what fits. If the shop \
refuses what you try, say why."""

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
"""Until a shipment arrives, and until the return window of a delivered order closes."""
_HINT = "That is not what I asked for."


def counter_task_names(slice_: CounterSlice, split: Split) -> list[str]:
    return [f"counter-{slice_}-{split}-{index:04d}" for index in range(SIZES[slice_][split])]


def is_counter_task(task: str) -> bool:
    return task.startswith("counter-")


def counter_seed(task: str) -> int:
    """The seed that `tasks` lists with a task; no two of the four lists share one."""
    slice_, split, index = _parse(task)
    return index + (200_000 if slice_ == "any" else 300_000) + (50_000 if split == "test" else 0)


def make_counter_case(task: str, seed: int) -> Case:
    """The world, the customer and the wish of a task: the same in every process.

    Raises:
        LookupError: There is no such task.
    """
    slice_, _, index = _parse(task)
    rng = Random(f"{task}/{seed}")
    world = make_world(rng)
    customer = rng.choice(list(world.users.values()))
    for order in world.orders_of(customer):
        del world.orders[order.order_id]
    story = Story(rng=rng, world=world, customer=customer)
    state = STATES[index % len(STATES)]
    order = _small_order(story, state)
    request = _request(story)
    parts = {step: _part(story, order, step, request) for step in _WISHES}
    # The states take turns, so a blind choice must not: it says nothing about what is possible.
    step = rng.choice(list(_WISHES)) if slice_ == "any" else _FITTING[state]
    return Case(
        task=task,
        seed=seed,
        world=world,
        customer=customer,
        parts=(parts.pop(step),),
        alternatives=tuple(parts.values()) if slice_ == "any" else (),
        identity_told=True,
        by_email=True,
        greeting=story.say("Hello!", "Hi there,", "Good morning."),
        closing=story.say("Thank you!", "Thanks, that was all."),
        express=True,
    )


def _small_order(story: Story, state: OrderStatus) -> Order:
    """One line, and the same number and days in every world: copying is what a tiny model learns last, and what this
    slice measures is the decision."""
    orders, days = story.world.orders, _DAYS_LEFT
    order = story.order(state, lines=1, delivered_days_ago=RETURN_DAYS - days if state == "delivered" else None)
    if order.shipment is not None:
        order.shipment.expected_on = TODAY + timedelta(days=days)
    del orders[order.order_id]
    order.order_id = _NUMBER
    orders[order.order_id] = order
    return order


def _request(story: Story) -> str:
    first, second, third = story.rng.sample(list(_WISHES.values()), 3)
    return f"Please {first}, {second} or {third}, whichever fits."


@dataclass(frozen=True, slots=True)
class _Answer:
    """How a step ends that fits the order's state."""

    text: str
    telling: Telling


def _part(story: Story, order: Order, step: Step, request: str) -> Part:
    look = Look(thinking="I look at the order.", calls=(call("list_orders"),))
    thinking, made = _call(order, step)
    act = (
        Write(thinking=thinking, call=made)
        if _FITTING[order.status] == step == "cancel"
        else Look(thinking=thinking, calls=(made,))
    )
    answer = _answer(story, order, step)
    say = Say(thinking="", text=answer.text, cues=answer.telling.patterns, hint=_HINT)
    return Part(kind="change", request=request, beats=(look, act, say), tellings=(answer.telling,))


def _call(order: Order, step: Step) -> tuple[str, Call]:
    number = order.order_id
    match step:
        case "cancel":
            made = call("cancel_order", order_id=number, reason="no_longer_needed")
        case "track":
            made = call("track_shipment", order_id=number)
        case "return":
            made = call("check_return_window", order_id=number)
    return f"{number} is {order.status}: {_INTENT[step]}.", made


def _answer(story: Story, order: Order, step: Step) -> _Answer:
    if _FITTING[order.status] != step:
        said_why = Telling(patterns=(CANNOT, rf"\b{order.status}\b"), is_value=False)
        return _Answer(f"I am sorry, that is not possible: your order is {order.status}.", said_why)
    match step:
        case "cancel":
            said = Telling(patterns=(r"\bcancell?ed\b",), is_value=False)
            return _Answer("Your order is cancelled.", said)
        case "track":
            assert order.shipment is not None
            day = order.shipment.expected_on
            said = told(day, by_any(order.order_id, "track_shipment"))
            return _Answer(f"Your order will arrive on {day}.", said)
        case "return":
            day = Desk(world=story.world).return_window(order).last_day
            return _Answer(
                f"You can return your order until {day}.", told(day, by_any(order.order_id, "check_return_window"))
            )


def _parse(task: str) -> tuple[CounterSlice, Split, int]:
    for slice_, sizes in SIZES.items():
        for split, size in sizes.items():
            number = task.removeprefix(f"counter-{slice_}-{split}-")
            if number.isascii() and number.isdigit() and len(number) == 4 and int(number) < size:
                return slice_, split, int(number)
    raise LookupError(f"there is no task {task!r} here; the tool `tasks` lists them")
