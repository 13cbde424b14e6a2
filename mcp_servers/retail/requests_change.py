"""Requests for changes that the policy allows: of an order as a whole, of its items, or of the account."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from mcp_rollout.mcp_servers.retail.database import Address, CancelReason, Line, Order, PaymentMethod, Variant
from mcp_rollout.mcp_servers.retail.generate import make_address
from mcp_rollout.mcp_servers.retail.script import (
    Change,
    Draft,
    Look,
    Request,
    Say,
    call,
    described,
    dollars,
    item_names,
    look_at,
    proposed_change,
)


def cancel(draft: Draft, order: Order | None = None) -> Change:
    """Cancels an order: the given one, which the conversation already named, or a new one."""
    known = order is not None
    order = order or draft.order("pending")
    why: dict[CancelReason, str] = {
        "no_longer_needed": "I no longer need it",
        "ordered_by_mistake": "I ordered it by mistake",
        "found_cheaper": "I found it cheaper elsewhere",
    }
    reason = draft.rng.choice(list(why))
    number, paid_by = order.order_id, draft.method(order.payment_method_id).label
    product = draft.identifying_product(order) if not known and draft.rng.random() < 0.5 else None
    if product:
        which = f"my order with the {product}"
        # The agent does not know the number, so it has to list the orders; get_order would be a guess.
        look = Look(thinking="I need to see which order that is.", calls=(call("list_orders", status="pending"),))
    else:
        which, look = f"order #{number}", look_at(number)
    return proposed_change(
        call("cancel_order", order_id=number, reason=reason),
        subject=number,
        wish=draft.say(f"Please cancel {which}; {why[reason]}.", f"I want {which} cancelled. {why[reason]}."),
        look=look,
        plan="It is pending, so it can be cancelled. I must ask before I do it.",
        proposal=f"Order #{number} with {item_names(order.lines)} is still pending, so I can cancel it; its full price "
        f"would go back to your {paid_by}. Shall I cancel it?",
        yes=draft.say("Yes, please cancel it.", "Yes, go ahead and cancel it."),
        confirmed="The customer said yes.",
        done="Done; the customer should know what comes back.",
        report=f"Order #{number} is cancelled, and {dollars(order.total)} goes back to your {paid_by}.",
        question="And how much money do I get back for the cancelled order?",
        amount=order.total,
    )


def order_address(draft: Draft, order: Order | None = None) -> Change:
    """Sends an order elsewhere: the given one, which the conversation already named, or a new one."""
    order, address = order or draft.order("pending"), _new_address(draft)
    number, where = order.order_id, written(address)
    return proposed_change(
        call("modify_order_address", order_id=number, address=address.model_dump()),
        subject=number,
        wish=draft.say(
            f"Please send order #{number} to {where} instead.", f"I moved: order #{number} has to go to {where}."
        ),
        look=look_at(number),
        plan="Pending, so this is allowed. I ask before I change it.",
        proposal=f"I would send order #{number} to {where}. Shall I change it?",
        yes=draft.say("Yes, that is right.", "Yes, please send it there."),
        done="I report what was done.",
        report=f"Order #{number} has been changed: it goes to {where}.",
        question="Is the new address set now?",
    )


def order_address_when_asked(draft: Draft) -> Request:
    """The customer gives the new address only when asked for it."""
    change = order_address(draft)
    number = change.subject
    ask = Say(
        thinking="I do not know the new address yet.",
        text=f"Order #{number} has not left yet, so its address can be changed. Where should we send it?",
        cues=(r"\?|address|where",),
        hint=f"It is about the address of order #{number}. What do you need to know?",
        answer=f"To {written(Address.model_validate(change.write.call.arguments['address']))}.",
    )
    return Request(
        kind="change",
        text=f"I need order #{number} sent to a different address.",
        turns=(change.look, ask, change.proposal, change.write, change.report),
    )


def payment(draft: Draft) -> Change:
    order = draft.order("pending")
    method, number = draft.other_method(order), order.order_id
    return proposed_change(
        call("change_payment", order_id=number, payment_method_id=method.payment_method_id),
        subject=number,
        wish=draft.say(
            f"I would like to pay order #{number} with my {method.label} instead.",
            f"Can you charge order #{number} to my {method.label}?",
        ),
        look=Look(
            thinking="I need the order and the customer's payment methods.",
            calls=(call("get_order", order_id=number), call("get_user", user_id=draft.customer.user_id)),
        ),
        plan="Pending, and the method is the customer's own. I ask first.",
        proposal=f"I would let your {method.label} pay order #{number}. Shall I change it?",
        yes=draft.say("Yes, do that.", "Yes, please."),
        done="I report it with the amount.",
        report=f"Order #{number} is now paid by your {method.label}; it will be charged {dollars(order.total)}.",
        question="And what amount will be charged?",
        amount=order.total,
    )


def account_address(draft: Draft) -> Change:
    address = _new_address(draft)
    where = written(address)
    return proposed_change(
        call("update_user_address", address=address.model_dump()),
        subject=address.zip_code,
        wish=draft.say(
            f"Please change the address of my account to {where}.",
            f"My account still has my old address, the new one is {where}.",
        ),
        look=Look(
            thinking="Let me see the account as it is.", calls=(call("get_user", user_id=draft.customer.user_id),)
        ),
        plan="I ask before I change the account.",
        proposal=f"I would set your account's address to {where}; existing orders keep theirs. Shall I do that?",
        before="Please read the new address back to me before you change anything.",
        yes=draft.say("Yes, that is correct.", "Yes, please do."),
        done="I report it.",
        report=f"Your account's address is now {where}.",
        question="Is my account's address changed now?",
    )


@dataclass(frozen=True, slots=True)
class Swapping:
    """A kind of swap: its tool, and the words for it."""

    tool: str
    verb: str
    done: str


MODIFYING = Swapping("modify_order_items", "change", "has been changed")
EXCHANGING = Swapping("exchange_items", "exchange", "is up for exchange")


def modify_items(draft: Draft, order: Order | None = None) -> Change:
    """Swaps an item of a pending order: the given one, which the conversation already named, or a new one."""
    order = order or draft.order("pending", lines=draft.rng.randint(1, 2))
    line = draft.rng.choice(order.lines)
    return swap(draft, MODIFYING, order, line, draft.swap(line), draft.method(order.payment_method_id))


def exchange(draft: Draft) -> Change:
    order = draft.order("delivered", lines=draft.rng.randint(1, 3))
    line = draft.rng.choice(order.lines)
    return swap(draft, EXCHANGING, order, line, draft.swap(line), draft.method(order.payment_method_id))


def return_some(draft: Draft) -> Change:
    order = draft.order("delivered", lines=draft.rng.randint(2, 3))
    lines = order.lines[: draft.rng.randint(1, 2)]
    cards = [method for method in draft.customer.payment_methods if method.kind == "gift_card"]
    method = cards[0] if cards and draft.rng.random() < 0.5 else draft.method(order.payment_method_id)
    return give_back(draft, order, lines, method)


def give_back(draft: Draft, order: Order, lines: Sequence[Line], method: PaymentMethod) -> Change:
    number, refund, things = order.order_id, sum((line.price for line in lines), Decimal(0)), item_names(lines)
    return proposed_change(
        call(
            "return_items",
            order_id=number,
            skus=[line.sku for line in lines],
            refund_to=method.payment_method_id,
        ),
        subject=number,
        wish=draft.say(
            f"I want to return {things} from order #{number}, with the money going to my {method.label}.",
            f"{things[0].upper()}{things[1:]} from order #{number} should go back; refund it to my {method.label}, "
            "please.",
        ),
        look=Look(
            thinking="I need the order's items, and whether it is still in time.",
            calls=(call("get_order", order_id=number), call("check_return_window", order_id=number)),
        ),
        plan="In time, and the refund may go there. I ask first.",
        proposal=f"I can take back {things} from order #{number} and refund your {method.label}. "
        "Do you want me to do that?",
        yes=draft.say("Yes, please.", "Yes, go ahead."),
        done="I tell the refund.",
        report=f"The return for order #{number} is requested; {dollars(refund)} goes to your {method.label}.",
        question="And how much will be refunded?",
        amount=refund,
    )


def swap(
    draft: Draft,
    kind: Swapping,
    order: Order,
    line: Line,
    variant: Variant,
    method: PaymentMethod,
    *,
    says_method: bool = True,
) -> Change:
    """`says_method`: whether the customer says at once which method bears the difference."""
    number, difference = order.order_id, variant.price - line.price
    amount = f"costs {dollars(difference)} more" if difference > 0 else f"gives {dollars(difference)} back"
    costs = f"{amount} on your {method.label}"
    wish = f"{kind.verb} the {line.name} in order #{number} to the one with {described(variant.options)}"
    return proposed_change(
        call(
            kind.tool,
            order_id=number,
            items=[{"sku": line.sku, "new_sku": variant.sku}],
            payment_method_id=method.payment_method_id,
        ),
        subject=number,
        wish=draft.say(
            f"I would like to {wish}." + f" Any difference can go on my {method.label}." * says_method,
            f"Can you {wish}?" + f" My {method.label} should bear the difference." * says_method,
        ),
        look=Look(
            thinking="I need the order and the product's variants.",
            calls=(call("get_order", order_id=number), call("search_products", query=line.name)),
        ),
        plan=f"{variant.sku} is in stock at {variant.price}, against {line.price} paid. I ask first.",
        proposal=f"I can {wish}. That {costs}. Shall I do it?",
        yes=draft.say("Yes, please.", "Yes, that is fine."),
        done="I report it with the difference.",
        report=f"The {line.name} in order #{number} {kind.done}; it {costs}.",
        question="And how much is the difference?",
        amount=abs(difference),
    )


def written(address: Address) -> str:
    return f"{address.street}, {address.city}, {address.state} {address.zip_code}"


def _new_address(draft: Draft) -> Address:
    while (address := make_address(draft.rng)) == draft.customer.address:
        pass
    return address
