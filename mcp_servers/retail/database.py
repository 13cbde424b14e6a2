"""The shop's database: its records, and the difference of two databases.

Tools take and return the records, so the docstrings of some are part of the tools' schemas.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from copy import deepcopy
from datetime import date
from decimal import Decimal
from typing import Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field

TODAY = date(2026, 3, 16)
"""The present day in every database; the written policy names it."""
RETURN_DAYS = 30

OrderStatus = Literal["pending", "shipped", "delivered", "cancelled", "return requested", "exchange requested"]
CancelReason = Literal["no_longer_needed", "ordered_by_mistake", "found_cheaper"]


class Record(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Address(Record):
    street: str = Field(description="Street and number, for example 12 Mill Lane", min_length=3, max_length=80)
    city: str = Field(min_length=2, max_length=40)
    state: str = Field(description="Two capital letters", pattern=r"^[A-Z]{2}$")
    zip_code: str = Field(description="Five digits", pattern=r"^[0-9]{5}$")


class PaymentMethod(Record):
    payment_method_id: str
    kind: Literal["card", "paypal", "gift_card"]
    label: str
    """What a customer calls it."""
    balance: Decimal | None = None
    """Of a gift card, in dollars, before the entries in the orders' ledgers."""


class User(Record):
    user_id: str
    first_name: str
    last_name: str
    email: str
    address: Address
    payment_methods: list[PaymentMethod]


class Variant(Record):
    sku: str
    options: dict[str, str]
    price: Decimal
    stock: int


class Product(Record):
    product_id: str
    name: str
    category: str
    variants: list[Variant]

    def variant(self, sku: str) -> Variant | None:
        return next((variant for variant in self.variants if variant.sku == sku), None)


class Line(Record):
    sku: str
    product_id: str
    name: str
    options: dict[str, str]
    price: Decimal


class LedgerEntry(Record):
    """Money moved after the order was placed."""

    kind: Literal["charge", "refund"]
    amount: Decimal
    payment_method_id: str


class Shipment(Record):
    carrier: str
    tracking_code: str
    expected_on: date


class Replacement(Record):
    """One item of an order and the variant of the same product that takes its place."""

    sku: str = Field(description="The item as it is in the order")
    new_sku: str = Field(description="Another variant of the same product, in stock")


class Order(Record):
    order_id: str
    user_id: str
    status: OrderStatus
    placed_on: date
    lines: list[Line]
    total: Decimal
    """Sum of the lines' prices, in dollars."""
    address: Address
    payment_method_id: str
    shipment: Shipment | None = None
    delivered_on: date | None = None
    cancel_reason: CancelReason | None = None
    items_modified: bool = False
    returned: list[str] = []
    exchanged: list[Replacement] = []
    ledger: list[LedgerEntry] = []

    def line(self, sku: str) -> Line | None:
        return next((line for line in self.lines if line.sku == sku), None)


class Database(Record):
    users: dict[str, User]
    products: dict[str, Product]
    orders: dict[str, Order]

    def orders_of(self, user: User) -> list[Order]:
        return [order for order in self.orders.values() if order.user_id == user.user_id]

    def copy_to_change(self, user: User) -> Database:
        """A copy in which tools can change the account and the orders of this user; all else are the same objects."""
        users = {**self.users, user.user_id: deepcopy(user)}
        own = {order.order_id: deepcopy(order) for order in self.orders_of(user)}
        return self.model_copy(update={"users": users, "orders": {**self.orders, **own}})

    def digest(self) -> str:
        """SHA-256 over the whole content: equal digests mean equal databases."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


Diff = frozenset[tuple[str, str]]
"""(path, value) pairs in which a database differs from an earlier one; a removed path has the value ""."""


def diff(before: Database, after: Database) -> Diff:
    """Every value of `after` that `before` does not have at its path, and every path that was removed."""
    old, new = dict[str, str](), dict[str, str]()
    for table in ("users", "products", "orders"):
        was: dict[str, Record] = getattr(before, table)
        now: dict[str, Record] = getattr(after, table)
        for key in was.keys() | now.keys():
            # Most records are the same or equal, and comparing two is much cheaper than walking through them.
            if was.get(key) is not now.get(key) and was.get(key) != now.get(key):
                old.update(_leaves(was.get(key), f"/{table}/{key}"))
                new.update(_leaves(now.get(key), f"/{table}/{key}"))
    changed = {(path, value) for path, value in new.items() if old.get(path) != value}
    return frozenset(changed | {(path, "") for path in old.keys() - new.keys()})


def _leaves(record: Record | None, path: str) -> Iterator[tuple[str, str]]:
    return iter(()) if record is None else _walk(record.model_dump(mode="json"), path)


def _walk(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, item in cast("dict[str, Any]", value).items():
            yield from _walk(item, f"{path}/{key}")
    elif isinstance(value, list):
        for index, item in enumerate(cast("list[Any]", value)):
            yield from _walk(item, f"{path}/{index}")
    else:
        yield path, json.dumps(value)
