"""Changes to the items of an order: swapped before it leaves, exchanged or returned after it arrived."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from mcp_servers.retail.consent import ACTIONS
from mcp_servers.retail.parts import CONFIRM, Change, Look, Say, Write, by_any, call, dollars, exactly, told
from mcp_servers.retail.requests_change import BEFORE
from mcp_servers.retail.story import Story, described, named
from mcp_servers.retail.world import Line, Order, PaymentMethod, Variant


@dataclass(frozen=True, slots=True)
class Swapping:
    """The two kinds of swap: their tool, and how one speaks of them."""

    tool: str
    verb: str
    done: str


MODIFYING = Swapping("modify_order_items", "change", "has been changed")
EXCHANGING = Swapping("exchange_items", "exchange", "is up for exchange")


def modify_items(story: Story, order: Order | None = None) -> Change:
    """Of an order that was spoken of before, if one is given."""
    order = order or story.order("pending", lines=story.rng.randint(1, 2))
    line = story.rng.choice(order.lines)
    return swap(story, MODIFYING, order, line, story.swap(line), story.method(order.payment_method_id))


def exchange(story: Story) -> Change:
    order = story.order("delivered", lines=story.rng.randint(1, 3))
    line = story.rng.choice(order.lines)
    return swap(story, EXCHANGING, order, line, story.swap(line), story.method(order.payment_method_id))


def return_some(story: Story) -> Change:
    order = story.order("delivered", lines=story.rng.randint(2, 3))
    lines = order.lines[: story.rng.randint(1, 2)]
    cards = [method for method in story.customer.payment_methods if method.kind == "gift_card"]
    method = cards[0] if cards and story.rng.random() < 0.5 else story.method(order.payment_method_id)
    return give_back(story, order, lines, method)


def give_back(story: Story, order: Order, lines: Sequence[Line], method: PaymentMethod) -> Change:
    number, refund = order.order_id, sum((line.price for line in lines), Decimal(0))
    return Change(
        wish=story.say(
            f"I want to return {named(lines)} from order #{number}, with the money going to my {method.label}.",
            f"{named(lines)[0].upper()}{named(lines)[1:]} from order #{number} should go back; refund it to my "
            f"{method.label}, please.",
        ),
        subject=number,
        look=Look(
            thinking="I need the order's items, and whether it is still in time.",
            calls=(call("get_order", order_id=number), call("check_return_window", order_id=number)),
        ),
        proposal=Say(
            thinking="In time, and the refund may go there. I ask first.",
            text=f"I can take back {named(lines)} from order #{number} and refund your {method.label}. "
            "Do you want me to do that?",
            cues=(exactly(number), CONFIRM, ACTIONS["return_items"]),
            hint=BEFORE,
            answer=story.say("Yes, please.", "Yes, go ahead."),
        ),
        write=Write(
            thinking="Confirmed.",
            call=call(
                "return_items",
                order_id=number,
                skus=[line.sku for line in lines],
                refund_to=method.payment_method_id,
            ),
        ),
        report=Say(
            thinking="I tell the refund.",
            text=f"The return for order #{number} is requested; {dollars(refund)} goes to your {method.label}.",
            cues=(exactly(refund),),
            hint="And how much will be refunded?",
        ),
        tellings=(told(refund, by_any(number, "return_items")),),
    )


def swap(
    story: Story,
    kind: Swapping,
    order: Order,
    line: Line,
    variant: Variant,
    method: PaymentMethod,
    *,
    says_method: bool = True,
) -> Change:
    """`says_method`: the customer says at once which method is to bear the difference."""
    number, difference = order.order_id, variant.price - line.price
    costs = f"{_costs(difference)} on your {method.label}"
    wish = f"{kind.verb} the {line.name} in order #{number} to the one with {described(variant.options)}"
    return Change(
        wish=story.say(
            f"I would like to {wish}." + f" Any difference can go on my {method.label}." * says_method,
            f"Can you {wish}?" + f" My {method.label} should bear the difference." * says_method,
        ),
        subject=number,
        look=Look(
            thinking="I need the order and the product's variants.",
            calls=(call("get_order", order_id=number), call("search_products", query=line.name)),
        ),
        proposal=Say(
            thinking=f"{variant.sku} is in stock at {variant.price}, against {line.price} paid. I ask first.",
            text=f"I can {kind.verb} the {line.name} in order #{number} to the one with {described(variant.options)}. "
            f"That {costs}. Shall I do it?",
            cues=(exactly(number), CONFIRM, ACTIONS[kind.tool]),
            hint=BEFORE,
            answer=story.say("Yes, please.", "Yes, that is fine."),
        ),
        write=Write(
            thinking="Confirmed.",
            call=call(
                kind.tool,
                order_id=number,
                items=[{"sku": line.sku, "new_sku": variant.sku}],
                payment_method_id=method.payment_method_id,
            ),
        ),
        report=Say(
            thinking="I report it with the difference.",
            text=f"The {line.name} in order #{number} {kind.done}; it {costs}.",
            cues=(exactly(abs(difference)),),
            hint="And how much is the difference?",
        ),
        tellings=(told(abs(difference), by_any(number, kind.tool)),),
    )


def _costs(difference: Decimal) -> str:
    return f"costs {dollars(difference)} more" if difference > 0 else f"gives {dollars(difference)} back"
