"""The shop in one trajectory: its database, the authenticated customer, what was looked up, and all changes.

Every refusal is a `ToolError` that names the rule of the written policy. A change is made completely or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from decimal import Decimal
from typing import Literal

from mcp.server.mcpserver.exceptions import ToolError

from mcp_rollout.mcp_servers.retail.database import (
    RETURN_DAYS,
    TODAY,
    Address,
    CancelReason,
    Database,
    LedgerEntry,
    Line,
    Order,
    PaymentMethod,
    Product,
    Record,
    Replacement,
    User,
    Variant,
)

Outcome = Literal["resolved", "refused", "transferred"]


def lookup(tool: str, subject: str) -> str:
    """The entry of `Shop.answered` for a tool's answer about an order or a product."""
    return f"{tool} {subject}"


class ReturnWindow(Record):
    order_id: str
    returnable: bool
    last_day: date | None = None
    reason: str


@dataclass(kw_only=True, slots=True)
class Shop:
    database: Database
    task: str | None = None
    seed: int = 0
    outcome: Outcome | None = None
    answered: set[str] = field(default_factory=set[str])
    """Look-ups that the agent made (`lookup`): a value that it tells counts only if it looked it up."""
    tried: set[str] = field(default_factory=set[str])
    """Of cancelling, tracking and checking a return, what the agent tried, successful or not."""
    _customer: User | None = field(default=None)

    def show(self, tool: str, subject: str) -> None:
        self.answered.add(lookup(tool, subject))

    def identify(self, found: User | None) -> User:
        """Authenticates the conversation's customer, who cannot change afterwards."""
        if found is None:
            raise ToolError("no customer with these details; ask the customer to check them")
        if self._customer is not None and found is not self._customer:
            raise ToolError("this conversation is with another customer already: one customer at a time (rule 2)")
        self._customer = found
        return found

    def customer(self) -> User:
        if self._customer is None:
            raise ToolError(
                "authenticate the customer first, with find_user_by_email or find_user_by_name_zip (rule 1)"
            )
        return self._customer

    def user(self, user_id: str) -> User:
        customer = self.customer()
        if user_id != customer.user_id:
            raise ToolError(f"{user_id!r} is not the customer of this conversation, {customer.user_id} (rule 2)")
        return customer

    def order(self, order_id: str) -> Order:
        customer = self.customer()
        order = self.database.orders.get(order_id.strip().lstrip("#").upper())
        if order is None:
            raise ToolError(f"there is no order {order_id!r}")
        if order.user_id != customer.user_id:
            raise ToolError(f"order {order.order_id} belongs to another customer: refuse (rule 2)")
        return order

    def product(self, product_id: str) -> Product:
        product = self.database.products.get(product_id)
        if product is None:
            raise ToolError(f"there is no product {product_id!r}; search_products finds products by name")
        return product

    def payment_method(self, payment_method_id: str) -> PaymentMethod:
        methods = self.customer().payment_methods
        for method in methods:
            if method.payment_method_id == payment_method_id:
                return method
        own = ", ".join(method.payment_method_id for method in methods)
        raise ToolError(f"{payment_method_id!r} is not one of the customer's payment methods: {own}")

    def require_funds(self, method: PaymentMethod, amount: Decimal) -> None:
        """Raises `ToolError` if the method is a gift card with less than `amount` left."""
        if method.balance is None:
            return
        entries = [entry for order in self.database.orders.values() for entry in order.ledger]
        own = [entry for entry in entries if entry.payment_method_id == method.payment_method_id]
        left = method.balance + sum(
            (entry.amount if entry.kind == "refund" else -entry.amount for entry in own), Decimal(0)
        )
        if left < amount:
            raise ToolError(f"{method.payment_method_id} has ${left} left and cannot pay ${amount} (rule 8)")

    def return_window(self, order: Order) -> ReturnWindow:
        last_day = order.delivered_on + timedelta(days=RETURN_DAYS) if order.delivered_on else None
        if order.status in ("return requested", "exchange requested"):
            reason = f"it has a {order.status.removesuffix(' requested')} already: one per order (rule 7)"
        elif last_day is None:
            reason = f"it is {order.status}: only delivered orders can be returned or exchanged (rule 6)"
        elif last_day < TODAY:
            reason = f"the {RETURN_DAYS} days after delivery ended on {last_day} (rule 6)"
        else:
            return ReturnWindow(
                order_id=order.order_id, returnable=True, last_day=last_day, reason="delivered, in time"
            )
        return ReturnWindow(order_id=order.order_id, returnable=False, last_day=last_day, reason=reason)


def cancel(shop: Shop, order_id: str, reason: CancelReason) -> Order:
    order = _pending(shop, order_id, "cancelled")
    order.status = "cancelled"
    order.cancel_reason = reason
    _enter(order, -order.total, order.payment_method_id)
    return order


def set_order_address(shop: Shop, order_id: str, address: Address) -> Order:
    order = _pending(shop, order_id, "sent elsewhere")
    order.address = address
    return order


def set_user_address(shop: Shop, address: Address) -> User:
    customer = shop.customer()
    customer.address = address
    return customer


def set_payment(shop: Shop, order_id: str, payment_method_id: str) -> Order:
    order = _pending(shop, order_id, "paid differently")
    method = shop.payment_method(payment_method_id)
    if order.payment_method_id != method.payment_method_id:
        shop.require_funds(method, order.total)
        order.payment_method_id = method.payment_method_id
    return order


def modify_items(shop: Shop, order_id: str, items: Sequence[Replacement], payment_method_id: str) -> Order:
    order = _pending(shop, order_id, "modified")
    if order.items_modified:
        raise ToolError(f"the items of order {order.order_id} were modified already: once per order (rule 5)")
    method = shop.payment_method(payment_method_id)
    swaps = _swaps(shop, order, items)
    difference = _difference(swaps)
    shop.require_funds(method, difference)
    for line, variant in swaps:
        line.sku, line.options, line.price = variant.sku, dict(variant.options), variant.price
    order.items_modified = True
    order.total += difference
    _enter(order, difference, method.payment_method_id)
    return order


def return_items(shop: Shop, order_id: str, skus: Sequence[str], refund_to: str) -> Order:
    order = _returnable(shop, order_id)
    method = shop.payment_method(refund_to)
    lines = [_line(order, sku) for sku in _distinct(skus)]
    if method.payment_method_id != order.payment_method_id and method.kind != "gift_card":
        raise ToolError(
            f"refunds go to {order.payment_method_id}, which paid, or to a gift card of the customer (rule 8)"
        )
    order.status = "return requested"
    order.returned = [line.sku for line in lines]
    _enter(order, -sum((line.price for line in lines), Decimal(0)), method.payment_method_id)
    return order


def exchange_items(shop: Shop, order_id: str, items: Sequence[Replacement], payment_method_id: str) -> Order:
    order = _returnable(shop, order_id)
    method = shop.payment_method(payment_method_id)
    difference = _difference(_swaps(shop, order, items))
    shop.require_funds(method, difference)
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
"""The changes of orders and accounts by tool name. After the shop, the parameters are the tool's."""


def price_difference(shop: Shop, order_id: str, items: Sequence[Replacement]) -> Decimal:
    """The cost of a modification or an exchange; negative for a refund. Changes nothing."""
    return _difference(_swaps(shop, shop.order(order_id), items))


def _pending(shop: Shop, order_id: str, done: str) -> Order:
    order = shop.order(order_id)
    if order.status != "pending":
        raise ToolError(f"order {order.order_id} is {order.status}: only pending orders can be {done} (rule 4)")
    return order


def _returnable(shop: Shop, order_id: str) -> Order:
    order = shop.order(order_id)
    window = shop.return_window(order)
    if not window.returnable:
        raise ToolError(f"order {order.order_id} cannot be returned or exchanged: {window.reason}")
    return order


def _swaps(shop: Shop, order: Order, items: Sequence[Replacement]) -> list[tuple[Line, Variant]]:
    _distinct([item.sku for item in items])
    return [_swap(shop, order, item) for item in items]


def _swap(shop: Shop, order: Order, item: Replacement) -> tuple[Line, Variant]:
    line = _line(order, item.sku)
    product = shop.product(line.product_id)
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
