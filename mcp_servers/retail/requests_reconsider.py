"""Customers who say no when they are asked: then nothing is to be done, or the same otherwise, or something else."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from mcp_servers.retail.parts import UNCHANGED, Change, Look, Part, Say, Telling, exactly
from mcp_servers.retail.requests_change import cancel, order_address, payment
from mcp_servers.retail.requests_items import (
    EXCHANGING,
    MODIFYING,
    exchange,
    give_back,
    modify_items,
    return_some,
    swap,
)
from mcp_servers.retail.story import Story, described
from mcp_servers.retail.world import PaymentMethod


def withdrawing(wanted: Callable[[Story], Change]) -> Callable[[Story], Part]:
    """The customer asks for this, and says no when asked to confirm it: it must not be done."""

    def withdrawn(story: Story) -> Part:
        change = wanted(story)
        number = change.subject
        no = story.say(
            "No, then please leave it as it is.",
            "Hm, no. I have thought better of it: do nothing.",
            "No, not like that. Forget about it.",
        )
        left = Say(
            thinking="The customer said no, so I must not do it.",
            text=f"Very well, I have changed nothing: order #{number} stays as it is.",
            cues=(UNCHANGED,),
            hint=f"So what becomes of order #{number} now?",
        )
        said = Telling(patterns=(UNCHANGED, exactly(number)), is_value=False, refused=number)
        beats = (change.look, replace(change.proposal, answer=no), left)
        return Part(kind="withdrawn", request=change.wish, beats=beats, tellings=(said,))

    return withdrawn


def other_method(story: Story) -> Part:
    """The customer does not say which method is to bear the difference, and it is not the one that paid."""
    kind = story.rng.choice((MODIFYING, EXCHANGING))
    order = story.order("pending" if kind is MODIFYING else "delivered", lines=2)
    line = story.rng.choice(order.lines)
    variant = story.swap(line)
    paid, wanted = story.method(order.payment_method_id), story.other_method(order)
    first = swap(story, kind, order, line, variant, paid, says_method=False)
    second = swap(story, kind, order, line, variant, wanted)
    no = f"No, not on my {paid.label}. The difference has to go on my {wanted.label}."
    yes = f"Yes, on my {wanted.label}."
    part = _after_no(first, no, second, yes, (_pattern(wanted),))
    look, proposal, *rest = part.beats
    assert isinstance(proposal, Say)
    # Who guesses the method, or asks for it, need not be told no first.
    return replace(part, beats=(look, replace(proposal, sooner=True), *rest))


def other_variant(story: Story) -> Part:
    """When the customer hears which variant it would be, they want another one."""
    order = story.order("delivered", lines=story.rng.randint(1, 2))
    line = story.rng.choice(order.lines)
    method = story.method(order.payment_method_id)
    variant = story.swap(line)
    while (other := story.swap(line)).sku == variant.sku:
        pass
    no = f"No, not that one after all. I would rather have the one with {described(other.options)}."
    new = [value for name, value in other.options.items() if variant.options[name] != value]
    return _after_no(
        swap(story, EXCHANGING, order, line, variant, method),
        no,
        swap(story, EXCHANGING, order, line, other, method),
        f"Yes, the one with {described(other.options)}.",
        tuple(rf"(?<!\w){re.escape(value)}(?!\w)" for value in new),
    )


def fewer_items(story: Story) -> Part:
    """The customer wants to return two items, and then keeps one of them."""
    order = story.order("delivered", lines=story.rng.randint(2, 3))
    back, kept = order.lines[:2]
    method = story.method(order.payment_method_id)
    return _after_no(
        give_back(story, order, [back, kept], method),
        f"No, wait, not both: I keep the {kept.name}. Only the {back.name} goes back.",
        give_back(story, order, [back], method),
        f"Yes, only the {back.name}.",
        (
            re.escape(back.name),
            # A proposal that names what is kept has to say that it is kept.
            rf"\A(?!(.|\n)*{re.escape(kept.name)})|\b(only|just|keep|not|without|stays?)\b",
        ),
    )


def address_instead(story: Story) -> Part:
    order = story.order("pending")
    first, second = cancel(story, order), order_address(story, order)
    zip_code = second.write.call.arguments["address"]["zip_code"]
    return _after_no(
        first,
        f"No, wait. I do not want it cancelled after all. {second.wish}",
        second,
        "Yes, send it there.",
        (exactly(zip_code),),
    )


def variant_instead(story: Story) -> Part:
    order = story.order("pending", lines=story.rng.randint(1, 2))
    first, second = cancel(story, order), modify_items(story, order)
    search = next(made for made in second.look.calls if made.name == "search_products")
    more = Look(thinking="Something else, then. I need the product's variants.", calls=(search,))
    no = f"No, on second thoughts I would rather keep it. {second.wish}"
    return _after_no(first, no, second, "Yes, that one.", (), more=more)


def return_instead(story: Story) -> Part:
    order = story.order("delivered", lines=story.rng.randint(1, 2))
    line = story.rng.choice(order.lines)
    method = story.method(order.payment_method_id)
    first = swap(story, EXCHANGING, order, line, story.swap(line), method)
    no = f"No, then I would rather have my money back. Take back the {line.name} and refund it to my {method.label}."
    return _after_no(first, no, give_back(story, order, [line], method), "Yes, please refund it.", ())


WITHDRAWALS = tuple(withdrawing(wanted) for wanted in (payment, modify_items, cancel, return_some, exchange))
OTHER_WAYS = (other_method, other_variant, fewer_items)
"""The same, but with another method, variant or choice of items."""
CHANGES_OF_MIND = (address_instead, variant_instead, return_instead)


def _after_no(
    first: Change, no: str, second: Change, yes: str, also: tuple[str, ...], *, more: Look | None = None
) -> Part:
    """The customer refuses the first change and wants the second one, of the same order.

    Args:
        also: Further patterns of a proposal of the second change, by which the customer tells it from the first one.
        more: What has to be looked up for the second change.
    """
    proposal = replace(second.proposal, answer=yes, cues=(*second.proposal.cues, *also), hint=no)
    return Part(
        kind="change",
        request=first.wish,
        beats=(
            first.look,
            replace(first.proposal, answer=no),
            *([more] if more else []),
            replace(proposal, thinking="Not that, then. What they want now needs a yes of its own."),
            second.write,
            second.report,
        ),
        tellings=second.tellings,
    )


def _pattern(method: PaymentMethod) -> str:
    return "paypal" if method.kind == "paypal" else re.escape(method.label.split()[-1])
