"""Customers who say no to a proposal and then want nothing done, the same in another way, or something else."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from mcp_rollout.mcp_servers.retail.database import PaymentMethod
from mcp_rollout.mcp_servers.retail.requests_change import (
    EXCHANGING,
    MODIFYING,
    cancel,
    exchange,
    give_back,
    modify_items,
    order_address,
    payment,
    return_some,
    swap,
)
from mcp_rollout.mcp_servers.retail.script import (
    UNCHANGED,
    Change,
    Draft,
    Look,
    Request,
    Say,
    Statement,
    described,
    exactly,
)


def withdrawing(wanted: Callable[[Draft], Change]) -> Callable[[Draft], Request]:
    """The customer asks for this change and says no to its proposal, so it must not be made."""

    def withdrawn(draft: Draft) -> Request:
        change = wanted(draft)
        number = change.subject
        no = draft.say(
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
        said = Statement(patterns=(UNCHANGED, exactly(number)), is_value=False, refused=number)
        turns = (change.look, replace(change.proposal, answer=no), left)
        return Request(kind="withdrawn", text=change.wish, turns=turns, statements=(said,))

    return withdrawn


def other_method(draft: Draft) -> Request:
    """The customer does not say which method bears the difference, and it is not the one that paid."""
    kind = draft.rng.choice((MODIFYING, EXCHANGING))
    order = draft.order("pending" if kind is MODIFYING else "delivered", lines=2)
    line = draft.rng.choice(order.lines)
    variant = draft.swap(line)
    paid, wanted = draft.method(order.payment_method_id), draft.other_method(order)
    first = swap(draft, kind, order, line, variant, paid, says_method=False)
    second = swap(draft, kind, order, line, variant, wanted)
    no = f"No, not on my {paid.label}. The difference has to go on my {wanted.label}."
    yes = f"Yes, on my {wanted.label}."
    request = _after_no(first, no, second, yes, (_pattern(wanted),))
    look, proposal, *rest = request.turns
    assert isinstance(proposal, Say)
    # An agent that guesses the method, or asks for it, gets its answer without a no first.
    return replace(request, turns=(look, replace(proposal, sooner=True), *rest))


def other_variant(draft: Draft) -> Request:
    """The customer wants another variant after the proposal names it."""
    order = draft.order("delivered", lines=draft.rng.randint(1, 2))
    line = draft.rng.choice(order.lines)
    method = draft.method(order.payment_method_id)
    variant = draft.swap(line)
    while (other := draft.swap(line)).sku == variant.sku:
        pass
    no = f"No, not that one after all. I would rather have the one with {described(other.options)}."
    new = [value for name, value in other.options.items() if variant.options[name] != value]
    return _after_no(
        swap(draft, EXCHANGING, order, line, variant, method),
        no,
        swap(draft, EXCHANGING, order, line, other, method),
        f"Yes, the one with {described(other.options)}.",
        tuple(rf"(?<!\w){re.escape(value)}(?!\w)" for value in new),
    )


def fewer_items(draft: Draft) -> Request:
    """The customer wants to return two items, and then keeps one of them."""
    order = draft.order("delivered", lines=draft.rng.randint(2, 3))
    back, kept = order.lines[:2]
    method = draft.method(order.payment_method_id)
    return _after_no(
        give_back(draft, order, [back, kept], method),
        f"No, wait, not both: I keep the {kept.name}. Only the {back.name} goes back.",
        give_back(draft, order, [back], method),
        f"Yes, only the {back.name}.",
        (
            re.escape(back.name),
            # A proposal that names the kept item has to say that it is kept.
            rf"\A(?!(.|\n)*{re.escape(kept.name)})|\b(only|just|keep|not|without|stays?)\b",
        ),
    )


def address_instead(draft: Draft) -> Request:
    order = draft.order("pending")
    first, second = cancel(draft, order), order_address(draft, order)
    zip_code = second.write.call.arguments["address"]["zip_code"]
    return _after_no(
        first,
        f"No, wait. I do not want it cancelled after all. {second.wish}",
        second,
        "Yes, send it there.",
        (exactly(zip_code),),
    )


def variant_instead(draft: Draft) -> Request:
    order = draft.order("pending", lines=draft.rng.randint(1, 2))
    first, second = cancel(draft, order), modify_items(draft, order)
    search = next(made for made in second.look.calls if made.name == "search_products")
    more = Look(thinking="Something else, then. I need the product's variants.", calls=(search,))
    no = f"No, on second thoughts I would rather keep it. {second.wish}"
    return _after_no(first, no, second, "Yes, that one.", (), more=more)


def return_instead(draft: Draft) -> Request:
    order = draft.order("delivered", lines=draft.rng.randint(1, 2))
    line = draft.rng.choice(order.lines)
    method = draft.method(order.payment_method_id)
    first = swap(draft, EXCHANGING, order, line, draft.swap(line), method)
    no = f"No, then I would rather have my money back. Take back the {line.name} and refund it to my {method.label}."
    return _after_no(first, no, give_back(draft, order, [line], method), "Yes, please refund it.", ())


WITHDRAWALS = tuple(withdrawing(wanted) for wanted in (payment, modify_items, cancel, return_some, exchange))
OTHER_WAYS = (other_method, other_variant, fewer_items)
"""The same change with another method, variant or choice of items."""
CHANGES_OF_MIND = (address_instead, variant_instead, return_instead)


def _after_no(
    first: Change, no: str, second: Change, yes: str, also: tuple[str, ...], *, more: Look | None = None
) -> Request:
    """The customer refuses the first change and wants the second one, of the same order.

    Args:
        also: Further patterns of the second proposal, which distinguish it from the first one.
        more: Look-ups for the second change.
    """
    proposal = replace(second.proposal, answer=yes, cues=(*second.proposal.cues, *also), hint=no)
    return Request(
        kind="change",
        text=first.wish,
        turns=(
            first.look,
            replace(first.proposal, answer=no),
            *([more] if more else []),
            replace(proposal, thinking="Not that, then. What they want now needs a yes of its own."),
            second.write,
            second.report,
        ),
        statements=second.statements,
    )


def _pattern(method: PaymentMethod) -> str:
    return "paypal" if method.kind == "paypal" else re.escape(method.label.split()[-1])
