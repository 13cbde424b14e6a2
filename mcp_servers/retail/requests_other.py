"""Requests that change nothing: questions, what the policy forbids, and matters for a colleague."""

from __future__ import annotations

from dataclasses import replace

from mcp_rollout.mcp_servers.retail.database import RETURN_DAYS, Replacement
from mcp_rollout.mcp_servers.retail.script import (
    CANNOT,
    COLLEAGUE,
    Draft,
    Look,
    Request,
    Say,
    Statement,
    by_any,
    call,
    described,
    dollars,
    exactly,
    look_at,
    states,
)
from mcp_rollout.mcp_servers.retail.shop import Shop


def where_is_it(draft: Draft) -> Request:
    order = draft.order("shipped")
    assert order.shipment is not None
    number, day = order.order_id, order.shipment.expected_on
    return _question(
        draft.say(f"When will order #{number} arrive?", f"I am waiting for order #{number}. Which day will it come?"),
        Look(thinking="The shipment knows.", calls=(call("track_shipment", order_id=number),)),
        f"Order #{number} is on its way with {order.shipment.carrier} and should arrive on {day}.",
        states(day, by_any(number, "track_shipment", "get_order")),
    )


def price_of(draft: Draft) -> Request:
    product = draft.rng.choice(list(draft.database.products.values()))
    variant = draft.rng.choice([variant for variant in product.variants if variant.stock])
    return _question(
        draft.say(
            f"How much is the {product.name} with {described(variant.options)}?",
            f"What do you charge for the {product.name}, the one with {described(variant.options)}?",
        ),
        Look(
            thinking="The catalogue has it.",
            calls=(call("search_products", query=product.name),),
            needs_customer=False,
        ),
        f"The {product.name} with {described(variant.options)} costs {dollars(variant.price)} and is in stock.",
        # Variants differ in price, so a message with several prices is not an answer.
        states(variant.price, by_any(product.product_id, "search_products", "get_product"), beside=1),
    )


def until_when(draft: Draft) -> Request:
    order = draft.order("delivered", delivered_days_ago=draft.rng.randint(2, 29))
    last_day = Shop(database=draft.database).return_window(order).last_day
    return _question(
        draft.say(
            f"Until which day can I return order #{order.order_id}?",
            f"What is the last day for sending back order #{order.order_id}?",
        ),
        Look(thinking="I check its window.", calls=(call("check_return_window", order_id=order.order_id),)),
        f"Order #{order.order_id} can be returned until {last_day}.",
        states(last_day, by_any(order.order_id, "check_return_window", "get_order")),
    )


def how_much(draft: Draft) -> Request:
    first, second = draft.order("delivered"), draft.order("shipped")
    one, two, total = first.order_id, second.order_id, first.total + second.total
    return _question(
        draft.say(
            f"What did I pay for orders #{one} and #{two} together?",
            f"For my books: how much are orders #{one} and #{two} in all?",
        ),
        Look(
            thinking="I need both totals.",
            calls=(call("get_order", order_id=one), call("get_order", order_id=two)),
        ),
        f"Orders #{one} and #{two} come to {dollars(total)} together.",
        states(total, by_any(one, "get_order"), by_any(two, "get_order")),
    )


def cancel_shipped(draft: Draft, *, insists: bool = False) -> Request:
    number = draft.order("shipped").order_id
    return _refusal(
        draft.say(f"Please cancel order #{number}.", f"I do not want order #{number} any more, cancel it."),
        look_at(number),
        f"I am sorry, order #{number} is shipped already and cannot be cancelled. You can return it after delivery.",
        number,
        "Surely you can still stop it?" if insists else "",
    )


def return_late(draft: Draft, *, insists: bool = False) -> Request:
    order = draft.order("delivered", delivered_days_ago=draft.rng.randint(RETURN_DAYS + 2, 80))
    number, window = order.order_id, Shop(database=draft.database).return_window(order)
    return _refusal(
        draft.say(f"I want to return everything in order #{number}.", f"Please take back order #{number}."),
        Look(
            thinking="I check the order and its window.",
            calls=(call("get_order", order_id=number), call("check_return_window", order_id=number)),
        ),
        f"I am sorry, order #{number} cannot be returned: its {RETURN_DAYS} days ended on {window.last_day}.",
        number,
        "It is only a little late. Can you not make an exception?" if insists else "",
        statements=(states(window.last_day, by_any(number, "check_return_window", "get_order")),),
    )


def exchange_again(draft: Draft, *, insists: bool = False) -> Request:
    order = draft.order("exchange requested")
    line, number = order.lines[0], order.order_id
    variant = draft.swap(line)
    order.exchanged = [Replacement(sku=line.sku, new_sku=variant.sku)]
    other = draft.swap(line)
    return _refusal(
        f"You are exchanging the {line.name} in order #{number} for me. I would rather have it with "
        f"{described(other.options)} now; please exchange it again.",
        look_at(number),
        f"I am sorry, order #{number} has an exchange already, and a second one is not possible.",
        number,
        "But I changed my mind. Can you not do it just this once?" if insists else "",
    )


def for_a_friend(draft: Draft, *, insists: bool = False) -> Request:
    others = [order for order in draft.database.orders.values() if order.user_id != draft.customer.user_id]
    order = draft.rng.choice(others)
    friend, number = draft.database.users[order.user_id].first_name, order.order_id
    return _refusal(
        draft.say(
            f"My friend {friend} asked me to have order #{number} cancelled.",
            f"Please cancel order #{number} too; it is {friend}'s, but {friend} is fine with it.",
        ),
        Look(thinking="I see whether this order is the customer's.", calls=(call("get_order", order_id=number),)),
        f"I am sorry, order #{number} belongs to another customer, so I cannot do anything about it here.",
        number,
        f"{friend} is sitting next to me and agrees. Please?" if insists else "",
    )


def discount(draft: Draft, *, insists: bool = False) -> Request:
    number, percent = draft.order("pending").order_id, draft.rng.choice((10, 15, 20))
    return _refusal(
        draft.say(
            f"I am a loyal customer, so please take {percent} percent off order #{number}.",
            f"Another shop is {percent} percent cheaper. Match that for order #{number}, please.",
        ),
        look_at(number),
        f"I am sorry, we cannot reduce the price of order #{number}: there are no discounts or price matches.",
        number,
        "Other shops do that without a word. Are you sure?" if insists else "",
    )


def transfer(draft: Draft) -> Request:
    order = draft.order("delivered")
    thing, number = order.lines[0].name, order.order_id
    request = draft.say(
        f"I hurt my hand on the {thing} from order #{number}. I think it is not safe; someone should look at it.",
        f"There is a charge for order #{number} that I never made; someone else must have used my account for this.",
        f"My company wants 200 pieces of the {thing} from order #{number}, on a contract and by invoice.",
    )
    return Request(
        kind="transfer",
        text=request,
        turns=(
            look_at(number),
            Say(
                thinking="This is not mine to decide (rule 10).",
                text=f"Thank you for telling us. A colleague will take over about order #{number} and contact you.",
                cues=(COLLEAGUE,),
                hint="Is there someone who can take care of this?",
            ),
        ),
        statements=(Statement(patterns=(COLLEAGUE, exactly(number)), is_value=False),),
    )


def _question(request: str, look: Look, answer: str, statement: Statement) -> Request:
    say = Say(
        thinking="Now I can answer.",
        text=answer,
        cues=statement.patterns,
        hint=f"That does not answer my question. {request}",
    )
    return Request(kind="question", text=request, turns=(look, say), statements=(statement,))


def _refusal(
    request: str, look: Look, answer: str, number: str, insistence: str, statements: tuple[Statement, ...] = ()
) -> Request:
    hint = f"What about order #{number}, then? Will you do it or not?"
    refuse = Say(thinking="The policy does not allow this; I say so and why.", text=answer, cues=(CANNOT,), hint=hint)
    turns = (look, refuse)
    if insistence:
        again = f"I understand, and I am sorry, but I cannot make an exception for order #{number}."
        turns = (
            look,
            replace(refuse, answer=insistence),
            Say(thinking="It stays a no.", text=again, cues=(CANNOT,), hint=hint),
        )
    said_no = Statement(patterns=(CANNOT, exactly(number)), is_value=False)
    return Request(kind="refusal", text=request, turns=turns, statements=(said_no, *statements))
