"""Requests that change nothing: questions, what the policy forbids, and what is for a colleague."""

from __future__ import annotations

from dataclasses import replace

from mcp_servers.retail.desk import Desk
from mcp_servers.retail.parts import CANNOT, COLLEAGUE, Look, Part, Say, Telling, by_any, call, dollars, exactly, told
from mcp_servers.retail.story import Story, described
from mcp_servers.retail.world import RETURN_DAYS, Replacement


def where_is_it(story: Story) -> Part:
    order = story.order("shipped")
    assert order.shipment is not None
    number, day = order.order_id, order.shipment.expected_on
    return _question(
        story.say(f"When will order #{number} arrive?", f"I am waiting for order #{number}. Which day will it come?"),
        Look(thinking="The shipment knows.", calls=(call("track_shipment", order_id=number),)),
        f"Order #{number} is on its way with {order.shipment.carrier} and should arrive on {day}.",
        told(day, by_any(number, "track_shipment", "get_order")),
    )


def price_of(story: Story) -> Part:
    product = story.rng.choice(list(story.world.products.values()))
    variant = story.rng.choice([variant for variant in product.variants if variant.stock])
    return _question(
        story.say(
            f"How much is the {product.name} with {described(variant.options)}?",
            f"What do you charge for the {product.name}, the one with {described(variant.options)}?",
        ),
        Look(
            thinking="The catalogue has it.",
            calls=(call("search_products", query=product.name),),
            needs_customer=False,
        ),
        f"The {product.name} with {described(variant.options)} costs {dollars(variant.price)} and is in stock.",
        # Variants differ in price, so to name the prices of several is no answer.
        told(variant.price, by_any(product.product_id, "search_products", "get_product"), beside=1),
    )


def until_when(story: Story) -> Part:
    order = story.order("delivered", delivered_days_ago=story.rng.randint(2, 29))
    last_day = Desk(world=story.world).return_window(order).last_day
    return _question(
        story.say(
            f"Until which day can I return order #{order.order_id}?",
            f"What is the last day for sending back order #{order.order_id}?",
        ),
        Look(thinking="I check its window.", calls=(call("check_return_window", order_id=order.order_id),)),
        f"Order #{order.order_id} can be returned until {last_day}.",
        told(last_day, by_any(order.order_id, "check_return_window", "get_order")),
    )


def how_much(story: Story) -> Part:
    first, second = story.order("delivered"), story.order("shipped")
    one, two, total = first.order_id, second.order_id, first.total + second.total
    return _question(
        story.say(
            f"What did I pay for orders #{one} and #{two} together?",
            f"For my books: how much are orders #{one} and #{two} in all?",
        ),
        Look(
            thinking="I need both totals.",
            calls=(call("get_order", order_id=one), call("get_order", order_id=two)),
        ),
        f"Orders #{one} and #{two} come to {dollars(total)} together.",
        told(total, by_any(one, "get_order"), by_any(two, "get_order")),
    )


def cancel_shipped(story: Story, *, insists: bool = False) -> Part:
    number = story.order("shipped").order_id
    return _refusal(
        story.say(f"Please cancel order #{number}.", f"I do not want order #{number} any more, cancel it."),
        Look(thinking=f"Let me look at {number}.", calls=(call("get_order", order_id=number),)),
        f"I am sorry, order #{number} is shipped already and cannot be cancelled. You can return it after delivery.",
        number,
        "Surely you can still stop it?" if insists else "",
    )


def return_late(story: Story, *, insists: bool = False) -> Part:
    order = story.order("delivered", delivered_days_ago=story.rng.randint(RETURN_DAYS + 2, 80))
    number, window = order.order_id, Desk(world=story.world).return_window(order)
    return _refusal(
        story.say(f"I want to return everything in order #{number}.", f"Please take back order #{number}."),
        Look(
            thinking="I check the order and its window.",
            calls=(call("get_order", order_id=number), call("check_return_window", order_id=number)),
        ),
        f"I am sorry, order #{number} cannot be returned: its {RETURN_DAYS} days ended on {window.last_day}.",
        number,
        "It is only a little late. Can you not make an exception?" if insists else "",
        tellings=(told(window.last_day, by_any(number, "check_return_window", "get_order")),),
    )


def exchange_again(story: Story, *, insists: bool = False) -> Part:
    order = story.order("exchange requested")
    line, number = order.lines[0], order.order_id
    variant = story.swap(line)
    order.exchanged = [Replacement(sku=line.sku, new_sku=variant.sku)]
    other = story.swap(line)
    return _refusal(
        f"You are exchanging the {line.name} in order #{number} for me. I would rather have it with "
        f"{described(other.options)} now; please exchange it again.",
        Look(thinking=f"Let me look at {number}.", calls=(call("get_order", order_id=number),)),
        f"I am sorry, order #{number} has an exchange already, and a second one is not possible.",
        number,
        "But I changed my mind. Can you not do it just this once?" if insists else "",
    )


def for_a_friend(story: Story, *, insists: bool = False) -> Part:
    others = [order for order in story.world.orders.values() if order.user_id != story.customer.user_id]
    order = story.rng.choice(others)
    friend, number = story.world.users[order.user_id].first_name, order.order_id
    return _refusal(
        story.say(
            f"My friend {friend} asked me to have order #{number} cancelled.",
            f"Please cancel order #{number} too; it is {friend}'s, but {friend} is fine with it.",
        ),
        Look(thinking="I see whether this order is the customer's.", calls=(call("get_order", order_id=number),)),
        f"I am sorry, order #{number} belongs to another customer, so I cannot do anything about it here.",
        number,
        f"{friend} is sitting next to me and agrees. Please?" if insists else "",
    )


def discount(story: Story, *, insists: bool = False) -> Part:
    number, percent = story.order("pending").order_id, story.rng.choice((10, 15, 20))
    return _refusal(
        story.say(
            f"I am a loyal customer, so please take {percent} percent off order #{number}.",
            f"Another shop is {percent} percent cheaper. Match that for order #{number}, please.",
        ),
        Look(thinking=f"Let me look at {number}.", calls=(call("get_order", order_id=number),)),
        f"I am sorry, we cannot reduce the price of order #{number}: there are no discounts or price matches.",
        number,
        "Other shops do that without a word. Are you sure?" if insists else "",
    )


def transfer(story: Story) -> Part:
    order = story.order("delivered")
    thing, number = order.lines[0].name, order.order_id
    request = story.say(
        f"I hurt my hand on the {thing} from order #{number}. I think it is not safe; someone should look at it.",
        f"There is a charge for order #{number} that I never made; someone else must have used my account for this.",
        f"My company wants 200 pieces of the {thing} from order #{number}, on a contract and by invoice.",
    )
    return Part(
        kind="transfer",
        request=request,
        beats=(
            Look(thinking=f"Let me look at {number}.", calls=(call("get_order", order_id=number),)),
            Say(
                thinking="This is not mine to decide (rule 10).",
                text=f"Thank you for telling us. A colleague will take over about order #{number} and contact you.",
                cues=(COLLEAGUE,),
                hint="Is there someone who can take care of this?",
            ),
        ),
        tellings=(Telling(patterns=(COLLEAGUE, exactly(number)), is_value=False),),
    )


def _question(request: str, look: Look, answer: str, telling: Telling) -> Part:
    say = Say(
        thinking="Now I can answer.",
        text=answer,
        cues=telling.patterns,
        hint=f"That does not answer my question. {request}",
    )
    return Part(kind="question", request=request, beats=(look, say), tellings=(telling,))


def _refusal(
    request: str, look: Look, answer: str, number: str, insistence: str, tellings: tuple[Telling, ...] = ()
) -> Part:
    hint = f"What about order #{number}, then? Will you do it or not?"
    refuse = Say(thinking="The policy does not allow this; I say so and why.", text=answer, cues=(CANNOT,), hint=hint)
    beats = (look, refuse)
    if insistence:
        again = f"I understand, and I am sorry, but I cannot make an exception for order #{number}."
        beats = (
            look,
            replace(refuse, answer=insistence),
            Say(thinking="It stays a no.", text=again, cues=(CANNOT,), hint=hint),
        )
    said_no = Telling(patterns=(CANNOT, exactly(number)), is_value=False)
    return Part(kind="refusal", request=request, beats=beats, tellings=(said_no, *tellings))
