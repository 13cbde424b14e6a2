"""Changes to an order as a whole, or to the account, that the policy allows."""

from __future__ import annotations

from mcp_servers.retail.consent import ACTIONS
from mcp_servers.retail.generate import make_address
from mcp_servers.retail.parts import CONFIRM, Change, Look, Part, Say, Write, by_any, call, dollars, exactly, told
from mcp_servers.retail.story import Story, named
from mcp_servers.retail.world import Address, CancelReason, Order

_DONE = r"\b(done|has been|have been|is now|are now|updated|changed|set|will (now )?(be|go)|goes|I['\u2019]ve|I have)\b"
BEFORE = "Before you do anything, please tell me which order you mean and what exactly you will do."
"""What a customer says who was not asked, or not clearly."""


def cancel(story: Story, order: Order | None = None) -> Change:
    """Of an order that was spoken of before, if one is given."""
    known = order is not None
    order = order or story.order("pending")
    why: dict[CancelReason, str] = {
        "no_longer_needed": "I no longer need it",
        "ordered_by_mistake": "I ordered it by mistake",
        "found_cheaper": "I found it cheaper elsewhere",
    }
    reason = story.rng.choice(list(why))
    number, paid_by = order.order_id, story.method(order.payment_method_id).label
    product = story.telling_product(order) if not known and story.rng.random() < 0.5 else None
    if product:
        which = f"my order with the {product}"
        # The number is not known: the list of orders shows which one it is, and get_order would be a guess.
        look = Look(thinking="I need to see which order that is.", calls=(call("list_orders", status="pending"),))
    else:
        which = f"order #{number}"
        look = Look(thinking=f"Let me look at {number}.", calls=(call("get_order", order_id=number),))
    return Change(
        wish=story.say(f"Please cancel {which}; {why[reason]}.", f"I want {which} cancelled. {why[reason]}."),
        subject=number,
        look=look,
        proposal=Say(
            thinking="It is pending, so it can be cancelled. I must ask before I do it.",
            text=f"Order #{number} with {named(order.lines)} is still pending, so I can cancel it; its full price "
            f"would go back to your {paid_by}. Shall I cancel it?",
            cues=(exactly(number), CONFIRM, ACTIONS["cancel_order"]),
            hint=BEFORE,
            answer=story.say("Yes, please cancel it.", "Yes, go ahead and cancel it."),
        ),
        write=Write(thinking="The customer said yes.", call=call("cancel_order", order_id=number, reason=reason)),
        report=Say(
            thinking="Done; the customer should know what comes back.",
            text=f"Order #{number} is cancelled, and {dollars(order.total)} goes back to your {paid_by}.",
            cues=(exactly(order.total),),
            hint="And how much money do I get back for the cancelled order?",
        ),
        tellings=(told(order.total, by_any(number, "cancel_order")),),
    )


def order_address(story: Story, order: Order | None = None) -> Change:
    """Of an order that was spoken of before, if one is given."""
    order, address = order or story.order("pending"), _new_address(story)
    number, where = order.order_id, written(address)
    return Change(
        wish=story.say(
            f"Please send order #{number} to {where} instead.", f"I moved: order #{number} has to go to {where}."
        ),
        subject=number,
        look=Look(thinking=f"Let me look at {number}.", calls=(call("get_order", order_id=number),)),
        proposal=Say(
            thinking="Pending, so this is allowed. I ask before I change it.",
            text=f"I would send order #{number} to {where}. Shall I change it?",
            cues=(exactly(number), CONFIRM, ACTIONS["modify_order_address"]),
            hint=BEFORE,
            answer=story.say("Yes, that is right.", "Yes, please send it there."),
        ),
        write=Write(
            thinking="Confirmed.",
            call=call("modify_order_address", order_id=number, address=address.model_dump()),
        ),
        report=Say(
            thinking="I report what was done.",
            text=f"Order #{number} has been changed: it goes to {where}.",
            cues=(_DONE,),
            hint="Is the new address set now?",
        ),
    )


def order_address_when_asked(story: Story) -> Part:
    """The customer gives the new address only when asked for it."""
    change = order_address(story)
    number = change.subject
    ask = Say(
        thinking="I do not know the new address yet.",
        text=f"Order #{number} has not left yet, so its address can be changed. Where should we send it?",
        cues=(r"\?|address|where",),
        hint=f"It is about the address of order #{number}. What do you need to know?",
        answer=f"To {written(Address.model_validate(change.write.call.arguments['address']))}.",
    )
    return Part(
        kind="change",
        request=f"I need order #{number} sent to a different address.",
        beats=(change.look, ask, change.proposal, change.write, change.report),
    )


def payment(story: Story) -> Change:
    order = story.order("pending")
    method, number = story.other_method(order), order.order_id
    return Change(
        wish=story.say(
            f"I would like to pay order #{number} with my {method.label} instead.",
            f"Can you charge order #{number} to my {method.label}?",
        ),
        subject=number,
        look=Look(
            thinking="I need the order and the customer's payment methods.",
            calls=(call("get_order", order_id=number), call("get_user", user_id=story.customer.user_id)),
        ),
        proposal=Say(
            thinking="Pending, and the method is the customer's own. I ask first.",
            text=f"I would let your {method.label} pay order #{number}. Shall I change it?",
            cues=(exactly(number), CONFIRM, ACTIONS["change_payment"]),
            hint=BEFORE,
            answer=story.say("Yes, do that.", "Yes, please."),
        ),
        write=Write(
            thinking="Confirmed.",
            call=call("change_payment", order_id=number, payment_method_id=method.payment_method_id),
        ),
        report=Say(
            thinking="I report it with the amount.",
            text=f"Order #{number} is now paid by your {method.label}; it will be charged {dollars(order.total)}.",
            cues=(exactly(order.total),),
            hint="And what amount will be charged?",
        ),
        tellings=(told(order.total, by_any(number, "change_payment")),),
    )


def account_address(story: Story) -> Change:
    address = _new_address(story)
    where = written(address)
    return Change(
        wish=story.say(
            f"Please change the address of my account to {where}.",
            f"My account still has my old address, the new one is {where}.",
        ),
        subject=address.zip_code,
        look=Look(
            thinking="Let me see the account as it is.",
            calls=(call("get_user", user_id=story.customer.user_id),),
        ),
        proposal=Say(
            thinking="I ask before I change the account.",
            text=f"I would set your account's address to {where}; existing orders keep theirs. Shall I do that?",
            cues=(exactly(address.zip_code), CONFIRM, ACTIONS["update_user_address"]),
            hint="Please read the new address back to me before you change anything.",
            answer=story.say("Yes, that is correct.", "Yes, please do."),
        ),
        write=Write(thinking="Confirmed.", call=call("update_user_address", address=address.model_dump())),
        report=Say(
            thinking="I report it.",
            text=f"Your account's address is now {where}.",
            cues=(_DONE,),
            hint="Is my account's address changed now?",
        ),
    )


def written(address: Address) -> str:
    return f"{address.street}, {address.city}, {address.state} {address.zip_code}"


def _new_address(story: Story) -> Address:
    while (address := make_address(story.rng)) == story.customer.address:
        pass
    return address
