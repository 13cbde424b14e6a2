"""Everything that changes the database. Each function either makes its whole change or raises `ToolError`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal

from mcp.server.mcpserver.exceptions import ToolError

from mcp_servers.retail.desk import Desk, Outcome
from mcp_servers.retail.world import (
    Address,
    CancelReason,
    LedgerEntry,
    Line,
    Order,
    PaymentMethod,
    Replacement,
    User,
    Variant,
)


def cancel(desk: Desk, order_id: str, reason: CancelReason) -> Order:
    order = _pending(desk, order_id, "cancelled")
    order.status = "cancelled"
    order.cancel_reason = reason
    _enter(order, -order.total, order.payment_method_id)
    return order


def set_order_address(desk: Desk, order_id: str, address: Address) -> Order:
    order = _pending(desk, order_id, "sent elsewhere")
    order.address = address
    return order


def set_user_address(desk: Desk, address: Address) -> User:
    customer = desk.customer()
    customer.address = address
    return customer


def set_payment(desk: Desk, order_id: str, payment_method_id: str) -> Order:
    order = _pending(desk, order_id, "paid differently")
    method = desk.payment_method(payment_method_id)
    if order.payment_method_id != method.payment_method_id:
        desk.require_funds(method, order.total)
        order.payment_method_id = method.payment_method_id
    return order


def modify_items(desk: Desk, order_id: str, items: Sequence[Replacement], payment_method_id: str) -> Order:
    order = _pending(desk, order_id, "modified")
    if order.items_modified:
        raise ToolError(f"the items of order {order.order_id} were modified already: once per order (rule 5)")
    method = desk.payment_method(payment_method_id)
    swaps = _swaps(desk, order, items)
    difference = _difference(swaps)
    desk.require_funds(method, difference)
    for line, variant in swaps:
        line.sku, line.options, line.price = variant.sku, dict(variant.options), variant.price
    order.items_modified = True
    order.total += difference
    _enter(order, difference, method.payment_method_id)
    return order


def return_items(desk: Desk, order_id: str, skus: Sequence[str], refund_to: str) -> Order:
    order = _returnable(desk, order_id)
    method = desk.payment_method(refund_to)
    lines = [_line(order, sku) for sku in _distinct(skus)]
    if method.payment_method_id != order.payment_method_id and method.kind != "gift_card":
        raise ToolError(
            f"refunds go to {order.payment_method_id}, which paid, or to a gift card of the customer (rule 8)"
        )
    order.status = "return requested"
    order.returned = [line.sku for line in lines]
    _enter(order, -sum((line.price for line in lines), Decimal(0)), method.payment_method_id)
    return order


def exchange_items(desk: Desk, order_id: str, items: Sequence[Replacement], payment_method_id: str) -> Order:
    order = _returnable(desk, order_id)
    method: PaymentMethod = desk.payment_method(payment_method_id)
    difference = _difference(_swaps(desk, order, items))
    desk.require_funds(method, difference)
    order.status = "exchange requested"
    order.exchanged = list(items)
    _enter(order, difference, method.payment_method_id)
    return order


WRITES: dict[str, Callable[..., object]] = {
    "cancel_order": cancel,
    "modify_order_address": set_order_address,
    "modify_order_items": modify_items,
    "change_payment": set_payment,
    "return_items": return_items,
    "exchange_items": exchange_items,
    "update_user_address": set_user_address,
}
"""The changes by their tools' names; after the desk, the parameters are the tools'."""


def price_difference(desk: Desk, order_id: str, items: Sequence[Replacement]) -> Decimal:
    """What a modification or an exchange would cost; negative where money comes back. Changes nothing."""
    return _difference(_swaps(desk, desk.order(order_id), items))


def record_outcome(desk: Desk, outcome: Outcome) -> None:
    desk.customer()
    desk.outcome = outcome


def _pending(desk: Desk, order_id: str, done: str) -> Order:
    order = desk.order(order_id)
    if order.status != "pending":
        raise ToolError(f"order {order.order_id} is {order.status}: only pending orders can be {done} (rule 4)")
    return order


def _returnable(desk: Desk, order_id: str) -> Order:
    order = desk.order(order_id)
    window = desk.return_window(order)
    if not window.returnable:
        raise ToolError(f"order {order.order_id} cannot be returned or exchanged: {window.reason}")
    return order


def _swaps(desk: Desk, order: Order, items: Sequence[Replacement]) -> list[tuple[Line, Variant]]:
    _distinct([item.sku for item in items])
    return [_swap(desk, order, item) for item in items]


def _swap(desk: Desk, order: Order, item: Replacement) -> tuple[Line, Variant]:
    line = _line(order, item.sku)
    product = desk.product(line.product_id)
    variant = product.variant(item.new_sku)
    if variant is None:
        raise ToolError(f"{item.new_sku!r} is not a variant of {product.name}: items are swapped within a product")
    if variant.sku == line.sku:
        raise ToolError(f"{item.sku} would be swapped for itself")
    if variant.stock == 0:
        raise ToolError(f"{variant.sku} is sold out")
    return line, variant


def _line(order: Order, sku: str) -> Line:
    line = order.line(sku)
    if line is None:
        own = ", ".join(line.sku for line in order.lines)
        raise ToolError(f"order {order.order_id} has no item {sku!r}; it has {own}")
    return line


def _distinct(skus: Sequence[str]) -> Sequence[str]:
    if len(set(skus)) < len(skus):
        raise ToolError("an item is named twice")
    return skus


def _difference(swaps: Sequence[tuple[Line, Variant]]) -> Decimal:
    return sum((variant.price - line.price for line, variant in swaps), Decimal(0))


def _enter(order: Order, charge: Decimal, payment_method_id: str) -> None:
    if charge == 0:
        return
    kind = "charge" if charge > 0 else "refund"
    order.ledger.append(LedgerEntry(kind=kind, amount=abs(charge), payment_method_id=payment_method_id))
