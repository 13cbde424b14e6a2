"""The shop's tools: what they refuse, what they tell about themselves, and whose world they touch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult

from mcp_rollout.mcp_servers.retail.database import TODAY, Order, PaymentMethod
from mcp_rollout.mcp_servers.retail.shop import Shop, set_payment
from mcp_rollout.mcp_servers.retail.tasks import TASKS, make_case

pytestmark = pytest.mark.anyio
Seats = Callable[..., AbstractAsyncContextManager[Callable[[str], Any]]]
ErrorOf = Callable[[CallToolResult], str]

TASK = "retail-train-0006"
SEED = TASKS.seed(TASK)
CASE = make_case(TASK, SEED)
ADDRESS = {"street": "1 Other Street", "city": "Elsewhere", "state": "OR", "zip_code": "97100"}


async def signed_in(player: Any) -> Any:
    await player.begin(TASK, SEED)
    assert not (await player.call("find_user_by_email", email=CASE.customer.email.upper())).is_error
    return player


def order(status: str) -> Order:
    return next(order for order in CASE.database.orders_of(CASE.customer) if order.status == status)


async def test_read_only_tools_change_no_score_and_no_record(retail_players: Seats):
    pending, shipped, delivered = order("pending"), order("shipped"), order("delivered")
    line = delivered.lines[0]
    variants = CASE.database.products[line.product_id].variants
    new = next(v.sku for v in variants if v.stock and v.sku != line.sku)
    reads: dict[str, dict[str, Any]] = {
        "get_user": {"user_id": CASE.customer.user_id},
        "list_orders": {"status": "pending"},
        "get_order": {"order_id": f"#{pending.order_id}"},
        "get_product": {"product_id": line.product_id},
        "search_products": {"query": line.name, "max_price": 500, "in_stock_only": True},
        "check_return_window": {"order_id": delivered.order_id},
        "quote_replacement": {"order_id": delivered.order_id, "items": [{"sku": line.sku, "new_sku": new}]},
        "track_shipment": {"order_id": shipped.order_id},
    }
    async with retail_players() as player:
        one = await signed_in(player("a"))
        listed = [t for t in (await one.world.list_tools()).tools if t.annotations.read_only_hint and not t.meta]
        assert {tool.name for tool in listed} == reads.keys()

        async def everything() -> list[Any]:
            return [(await one.call(name, **arguments)).structured_content for name, arguments in reads.items()]

        before = await everything()
        assert None not in before
        assert await everything() == before


async def test_idempotent_writes_answer_alike_twice_and_the_others_are_refused_the_second_time(retail_players: Seats):
    pending = order("pending")
    method = next(m for m in CASE.customer.payment_methods if m.payment_method_id != pending.payment_method_id)
    twice: list[tuple[str, dict[str, Any]]] = [
        ("update_user_address", {"address": ADDRESS}),
        ("modify_order_address", {"order_id": pending.order_id, "address": ADDRESS}),
        ("change_payment", {"order_id": pending.order_id, "payment_method_id": method.payment_method_id}),
        ("record_outcome", {"outcome": "resolved", "summary": "Done."}),
        ("find_user_by_email", {"email": CASE.customer.email}),
        ("cancel_order", {"order_id": pending.order_id, "reason": "found_cheaper"}),
    ]
    async with retail_players() as player:
        one = await signed_in(player("a"))
        hints = {tool.name: tool.annotations.idempotent_hint for tool in (await one.world.list_tools()).tools}
        for name, arguments in twice:
            first, second = await one.call(name, **arguments), await one.call(name, **arguments)
            assert not first.is_error, first
            same = (second.is_error, second.structured_content) == (False, first.structured_content)
            assert same == hints[name], name


async def test_nothing_about_accounts_or_orders_without_authentication(retail_players: Seats, error_of: ErrorOf):
    async with retail_players() as player:
        one = player("a")
        await one.begin(TASK, SEED)
        for name, arguments in [
            ("get_order", {"order_id": order("pending").order_id}),
            ("list_orders", {}),
            ("get_user", {"user_id": CASE.customer.user_id}),
            ("cancel_order", {"order_id": order("pending").order_id, "reason": "found_cheaper"}),
            ("update_user_address", {"address": ADDRESS}),
            ("record_outcome", {"outcome": "refused", "summary": "-"}),
        ]:
            assert "authenticate the customer first" in error_of(await one.call(name, **arguments))
        assert not (await one.call("search_products", query="home")).is_error


async def test_one_customer_per_conversation_and_no_orders_of_others(retail_players: Seats, error_of: ErrorOf):
    other = next(user for user in CASE.database.users.values() if user.user_id != CASE.customer.user_id)
    foreign = CASE.database.orders_of(other)[0].order_id
    async with retail_players() as player:
        one = await signed_in(player("a"))
        assert "another customer already" in error_of(await one.call("find_user_by_email", email=other.email))
        assert "not the customer" in error_of(await one.call("get_user", user_id=other.user_id))
        assert "belongs to another customer" in error_of(await one.call("get_order", order_id=foreign))


async def test_only_pending_orders_can_be_changed(retail_players: Seats, error_of: ErrorOf):
    shipped = order("shipped").order_id
    method = CASE.customer.payment_methods[0].payment_method_id
    async with retail_players() as player:
        one = await signed_in(player("a"))
        for name, arguments in [
            ("cancel_order", {"reason": "found_cheaper"}),
            ("modify_order_address", {"address": ADDRESS}),
            ("change_payment", {"payment_method_id": method}),
            ("modify_order_items", {"items": [{"sku": "V1", "new_sku": "V2"}], "payment_method_id": method}),
        ]:
            refusal = error_of(await one.call(name, order_id=shipped, **arguments))
            assert f"{shipped} is shipped: only pending orders" in refusal
            assert "rule 4" in refusal


async def test_one_return_or_exchange_per_order(retail_players: Seats, error_of: ErrorOf):
    delivered = order("delivered")
    line = delivered.lines[0]
    variants = CASE.database.products[line.product_id].variants
    new = [v.sku for v in variants if v.stock and v.sku != line.sku]
    paid = delivered.payment_method_id
    async with retail_players() as player:
        one = await signed_in(player("a"))

        async def exchange(new_sku: str) -> CallToolResult:
            items = [{"sku": line.sku, "new_sku": new_sku}]
            return await one.call("exchange_items", order_id=delivered.order_id, items=items, payment_method_id=paid)

        sold_out = next(v.sku for v in variants if not v.stock)
        assert "sold out" in error_of(await exchange(sold_out))
        assert "not a variant" in error_of(await exchange("V0"))
        assert not (await exchange(new[0])).is_error
        assert "one per order" in error_of(await exchange(new[1]))
        again = await one.call("return_items", order_id=delivered.order_id, skus=[line.sku], refund_to=paid)
        assert "one per order" in error_of(again)


async def test_refunds_go_back_to_what_paid_or_to_a_gift_card(retail_players: Seats, error_of: ErrorOf):
    delivered = order("delivered")
    wrong = next(
        method.payment_method_id
        for method in CASE.customer.payment_methods
        if method.kind != "gift_card" and method.payment_method_id != delivered.payment_method_id
    )
    async with retail_players() as player:
        one = await signed_in(player("a"))
        skus = [delivered.lines[0].sku]
        refused = await one.call("return_items", order_id=delivered.order_id, skus=skus, refund_to=wrong)
        twice = await one.call("return_items", order_id=delivered.order_id, skus=skus * 2, refund_to=wrong)
        foreign = await one.call("return_items", order_id=delivered.order_id, skus=skus, refund_to="card_0")
    assert "rule 8" in error_of(refused)
    assert "named twice" in error_of(twice)
    assert "not one of the customer's payment methods" in error_of(foreign)


def test_the_last_day_for_a_return_is_in_and_the_next_is_not():
    database = CASE.database.copy_to_change(CASE.customer)
    delivered = next(o for o in database.orders_of(CASE.customer) if o.status == "delivered")
    shop = Shop(database=database)
    delivered.delivered_on = TODAY - timedelta(days=30)
    assert shop.return_window(delivered).returnable
    delivered.delivered_on = TODAY - timedelta(days=31)
    assert not shop.return_window(delivered).returnable


def test_a_gift_card_pays_no_more_than_is_left_on_it():
    database = CASE.database.copy_to_change(CASE.customer)
    customer = database.users[CASE.customer.user_id]
    pending = next(o for o in database.orders_of(customer) if o.status == "pending")
    card = PaymentMethod(payment_method_id="gift_1", kind="gift_card", label="gift card", balance=pending.total)
    customer.payment_methods.append(card)
    shop = Shop(database=database)
    shop.identify(customer)
    set_payment(shop, pending.order_id, "gift_1")
    card.balance = pending.total - Decimal("0.01")
    pending.payment_method_id = customer.payment_methods[0].payment_method_id
    with pytest.raises(ToolError, match="rule 8"):
        set_payment(shop, pending.order_id, "gift_1")
