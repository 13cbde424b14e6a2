"""The service desk in one trajectory: the database, whom the agent serves, and what may be looked up."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date, timedelta
from decimal import Decimal
from typing import Literal

from mcp.server.mcpserver.exceptions import ToolError

from mcp_servers.retail.world import RETURN_DAYS, TODAY, Order, PaymentMethod, Product, Record, User, World

Outcome = Literal["resolved", "refused", "transferred"]


def lookup(tool: str, subject: str) -> str:
    """How it is noted that this tool answered about this order or product."""
    return f"{tool} {subject}"


class ReturnWindow(Record):
    order_id: str
    returnable: bool
    last_day: date | None = None
    reason: str


@dataclass(kw_only=True, slots=True)
class Desk:
    """Every refusal is a `ToolError` that says which rule of the policy it comes from."""

    world: World
    task: str | None = None
    seed: int = 0
    outcome: Outcome | None = None
    answered: set[str] = field(default_factory=set[str])
    """What the agent was shown, as `lookup` writes it: what it tells counts only if it can know it."""
    tried: set[str] = field(default_factory=set[str])
    """The counter's steps that were tried, whatever came of them."""
    _customer: User | None = field(default=None)

    def show(self, tool: str, subject: str) -> None:
        self.answered.add(lookup(tool, subject))

    def identify(self, found: User | None) -> User:
        """The conversation is with this user from now on; there is one customer per conversation."""
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
        order = self.world.orders.get(order_id.strip().lstrip("#").upper())
        if order is None:
            raise ToolError(f"there is no order {order_id!r}")
        if order.user_id != customer.user_id:
            raise ToolError(f"order {order.order_id} belongs to another customer: refuse (rule 2)")
        return order

    def product(self, product_id: str) -> Product:
        product = self.world.products.get(product_id)
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
        """A gift card pays only what is left on it."""
        if method.balance is None:
            return
        entries = [entry for order in self.world.orders.values() for entry in order.ledger]
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
