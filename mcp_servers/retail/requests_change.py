"""Requests that the policy allows and that change the database."""

from __future__ import annotations

from decimal import Decimal

from mcp_servers.retail.generate import make_address
from mcp_servers.retail.parts import CONFIRM, Look, Part, Say, Write, call, dollars, exactly, told
from mcp_servers.retail.story import Story, described, named
from mcp_servers.retail.world import Address, CancelReason, Line, Order, Variant

_DONE = r"\b(done|has been|have been|is now|are now|updated|changed|set|will (now )?(be|go)|goes|I['\u2019]ve|I have)\b"
_BEFORE = "Before you do anything, please tell me which order you mean and what exactly you will do."


def cancel(story: Story) -> Part:
    order = story.order("pending")
    why: dict[CancelReason, str] = {
        "no_longer_needed": "I no longer need it",
        "ordered_by_mistake": "I ordered it by mistake",
        "found_cheaper": "I found it cheaper elsewhere",
    }
    reason = story.rng.choice(list(why))
    number, paid_by = order.order_id, story.method(order.payment_method_id).label
    product = story.telling_product(order) if story.rng.random() < 0.5 else None
    if product:
        which = f"my order with the {product}"
        # The number is not known: the list of orders shows which one it is, and get_order would be a guess.
        look = Look(thinking="I need to see which order that is.", calls=(call("list_orders", status="pending"),))
    else:
        which = f"order #{number}"
        look = Look(thinking=f"Let me look at {number}.", calls=(call("get_order", order_id=number),))
    return Part(
        kind="change",
        request=story.say(f"Please cancel {which}; {why[reason]}.", f"I want {which} cancelled. {why[reason]}."),
        beats=(
            look,
            Say(
                thinking="It is pending, so it can be cancelled. I must ask before I do it.",
                text=f"Order #{number} with {named(order.lines)} is still pending, so I can cancel it; its full price "
                f"would go back to your {paid_by}. Shall I cancel it?",
                cues=(exactly(number), CONFIRM),
                hint=_BEFORE,
                answer=story.say("Yes, please cancel it.", "Yes, go ahead."),
            ),
            Write(
                thinking="The customer said yes.",
                call=call("cancel_order", order_id=number, reason=reason),
            ),
            Say(
                thinking="Done; the customer should know what comes back.",
                text=f"Order #{number} is cancelled, and {dollars(order.total)} goes back to your {paid_by}.",
                cues=(exactly(order.total),),
                hint="And how much money do I get back for the cancelled order?",
            ),
        ),
        tellings=(told(order.total),),
    )


def order_address(story: Story, *, withheld: bool = False) -> Part:
    """`withheld`: the customer gives the new address only when asked for it."""
    order, address = story.order("pending"), _new_address(story)
    number, where = order.order_id, _written(address)
    look = Look(thinking=f"Let me look at {number}.", calls=(call("get_order", order_id=number),))
    ask = Say(
        thinking="I do not know the new address yet.",
        text=f"Order #{number} has not left yet, so its address can be changed. Where should we send it?",
        cues=(r"\?|address|where",),
        hint=f"It is about the address of order #{number}. What do you need to know?",
        answer=f"To {where}.",
    )
    propose = Say(
        thinking="Pending, so this is allowed. I ask before I change it.",
        text=f"I would send order #{number} to {where}. Shall I change it?",
        cues=(exactly(number), CONFIRM),
        hint=_BEFORE,
        answer=story.say("Yes, that is right.", "Yes, please."),
    )
    done = (
        Write(
            thinking="Confirmed.",
            call=call("modify_order_address", order_id=number, address=address.model_dump()),
        ),
        Say(
            thinking="I report what was done.",
            text=f"Order #{number} has been changed: it goes to {where}.",
            cues=(_DONE,),
            hint="Is the new address set now?",
        ),
    )
    if withheld:
        request = f"I need order #{number} sent to a different address."
        return Part(kind="change", request=request, beats=(look, ask, propose, *done))
    request = story.say(
        f"Please send order #{number} to {where} instead.", f"I moved: order #{number} has to go to {where}."
    )
    return Part(kind="change", request=request, beats=(look, propose, *done))


def modify_items(story: Story) -> Part:
    order = story.order("pending", lines=story.rng.randint(1, 2))
    return _swap(story, order, tool="modify_order_items", verb="change", done="has been changed")


def exchange(story: Story) -> Part:
    order = story.order("delivered", lines=story.rng.randint(1, 3))
    return _swap(story, order, tool="exchange_items", verb="exchange", done="is up for exchange")


def payment(story: Story) -> Part:
    order = story.order("pending")
    method, number = story.other_method(order), order.order_id
    return Part(
        kind="change",
        request=story.say(
            f"I would like to pay order #{number} with my {method.label} instead.",
            f"Can you charge order #{number} to my {method.label}?",
        ),
        beats=(
            Look(
                thinking="I need the order and the customer's payment methods.",
                calls=(call("get_order", order_id=number), call("get_user", user_id=story.customer.user_id)),
            ),
            Say(
                thinking="Pending, and the method is the customer's own. I ask first.",
                text=f"I would let your {method.label} pay order #{number}. Shall I change it?",
                cues=(exactly(number), CONFIRM),
                hint=_BEFORE,
                answer=story.say("Yes, do that.", "Yes, please."),
            ),
            Write(
                thinking="Confirmed.",
                call=call("change_payment", order_id=number, payment_method_id=method.payment_method_id),
            ),
            Say(
                thinking="I report it with the amount.",
                text=f"Order #{number} is now paid by your {method.label}; it will be charged {dollars(order.total)}.",
                cues=(exactly(order.total),),
                hint="And what amount will be charged?",
            ),
        ),
        tellings=(told(order.total),),
    )


def return_some(story: Story) -> Part:
    order = story.order("delivered", lines=story.rng.randint(2, 3))
    number, lines = order.order_id, order.lines[: story.rng.randint(1, 2)]
    refund = sum((line.price for line in lines), Decimal(0))
    cards = [method for method in story.customer.payment_methods if method.kind == "gift_card"]
    method = cards[0] if cards and story.rng.random() < 0.5 else story.method(order.payment_method_id)
    return Part(
        kind="change",
        request=story.say(
            f"I want to return {named(lines)} from order #{number}, with the money going to my {method.label}.",
            f"{named(lines)[0].upper()}{named(lines)[1:]} from order #{number} should go back; refund it to my "
            f"{method.label}, please.",
        ),
        beats=(
            Look(
                thinking="I need the order's items, and whether it is still in time.",
                calls=(call("get_order", order_id=number), call("check_return_window", order_id=number)),
            ),
            Say(
                thinking="In time, and the refund may go there. I ask first.",
                text=f"I can take back {named(lines)} from order #{number} and refund your {method.label}. "
                "Do you want me to do that?",
                cues=(exactly(number), CONFIRM),
                hint=_BEFORE,
                answer=story.say("Yes, please.", "Yes, go ahead."),
            ),
            Write(
                thinking="Confirmed.",
                call=call(
                    "return_items",
                    order_id=number,
                    skus=[line.sku for line in lines],
                    refund_to=method.payment_method_id,
                ),
            ),
            Say(
                thinking="I tell the refund.",
                text=f"The return for order #{number} is requested; {dollars(refund)} goes to your {method.label}.",
                cues=(exactly(refund),),
                hint="And how much will be refunded?",
            ),
        ),
        tellings=(told(refund),),
    )


def account_address(story: Story) -> Part:
    address = _new_address(story)
    where, area = _written(address), exactly(address.zip_code)
    return Part(
        kind="change",
        request=story.say(
            f"Please change the address of my account to {where}.",
            f"My account still has my old address, the new one is {where}.",
        ),
        beats=(
            Look(
                thinking="Let me see the account as it is.",
                calls=(call("get_user", user_id=story.customer.user_id),),
            ),
            Say(
                thinking="I ask before I change the account.",
                text=f"I would set your account's address to {where}; existing orders keep theirs. Shall I do that?",
                cues=(area, CONFIRM),
                hint="Please read the new address back to me before you change anything.",
                answer=story.say("Yes, that is correct.", "Yes, please do."),
            ),
            Write(thinking="Confirmed.", call=call("update_user_address", address=address.model_dump())),
            Say(
                thinking="I report it.",
                text=f"Your account's address is now {where}.",
                cues=(_DONE,),
                hint="Is my account's address changed now?",
            ),
        ),
    )


def _swap(story: Story, order: Order, *, tool: str, verb: str, done: str) -> Part:
    line = story.rng.choice(order.lines)
    variant, number = story.swap(line), order.order_id
    method = story.method(order.payment_method_id)
    difference = variant.price - line.price
    wish = f"{verb} the {line.name} in order #{number} to the one with {described(variant.options)}"
    return Part(
        kind="change",
        request=story.say(
            f"I would like to {wish}. Any difference can go on my {method.label}.",
            f"Can you {wish}? My {method.label} should bear the difference.",
        ),
        beats=(
            Look(
                thinking="I need the order and the product's variants.",
                calls=(call("get_order", order_id=number), call("search_products", query=line.name)),
            ),
            Say(
                thinking=f"{variant.sku} is in stock at {variant.price}, against {line.price} paid. I ask first.",
                text=f"I can {verb} the {line.name} in order #{number} to the one with {described(variant.options)}. "
                f"That {_costs(difference)} on your {method.label}. Shall I do it?",
                cues=(exactly(number), CONFIRM),
                hint=_BEFORE,
                answer=story.say("Yes, please.", "Yes, that is fine."),
            ),
            Write(
                thinking="Confirmed.",
                call=call(
                    tool,
                    order_id=number,
                    items=[_replacement(line, variant)],
                    payment_method_id=method.payment_method_id,
                ),
            ),
            Say(
                thinking="I report it with the difference.",
                text=f"The {line.name} in order #{number} {done}; it {_costs(difference)} on your {method.label}.",
                cues=(exactly(abs(difference)),),
                hint="And how much is the difference?",
            ),
        ),
        tellings=(told(abs(difference)),),
    )


def _replacement(line: Line, variant: Variant) -> dict[str, str]:
    return {"sku": line.sku, "new_sku": variant.sku}


def _costs(difference: Decimal) -> str:
    return f"costs {dollars(difference)} more" if difference > 0 else f"gives {dollars(difference)} back"


def _new_address(story: Story) -> Address:
    while (address := make_address(story.rng)) == story.customer.address:
        pass
    return address


def _written(address: Address) -> str:
    return f"{address.street}, {address.city}, {address.state} {address.zip_code}"
