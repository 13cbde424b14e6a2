"""Random databases: equal generator states give equal databases in every process. All names are invented."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from functools import cache
from itertools import product as combinations
from random import Random
from typing import Any, cast

from mcp_rollout.mcp_servers.retail.database import (
    TODAY,
    Address,
    Database,
    Line,
    Order,
    OrderStatus,
    PaymentMethod,
    Product,
    Shipment,
    User,
    Variant,
)

Axes = tuple[tuple[str, tuple[str, ...]], ...]
ProductEntry = tuple[str, str, int, Axes]
PRODUCTS: tuple[ProductEntry, ...] = (
    ("Desk Lamp", "home", 34, (("colour", ("black", "white", "brass")), ("base", ("clamp", "stand")))),
    ("Wool Blanket", "home", 58, (("colour", ("grey", "moss", "rust")), ("size", ("single", "double")))),
    ("Wall Clock", "home", 29, (("colour", ("oak", "walnut", "white")), ("size", ("25 cm", "35 cm")))),
    ("Floor Cushion", "home", 41, (("colour", ("indigo", "sand", "olive")), ("shape", ("round", "square")))),
    ("Chef Knife", "kitchen", 72, (("length", ("16 cm", "20 cm", "24 cm")), ("handle", ("wood", "resin")))),
    ("Teapot", "kitchen", 38, (("material", ("glass", "cast iron", "stoneware")), ("volume", ("0.6 l", "1.1 l")))),
    ("Frying Pan", "kitchen", 64, (("diameter", ("20 cm", "24 cm", "28 cm")), ("coating", ("ceramic", "none")))),
    ("Coffee Grinder", "kitchen", 89, (("colour", ("black", "steel", "red")), ("burrs", ("flat", "conical")))),
    ("Rain Jacket", "clothing", 97, (("size", ("S", "M", "L", "XL")), ("colour", ("navy", "yellow")))),
    ("Hiking Boots", "clothing", 124, (("size", ("39", "41", "43", "45")), ("colour", ("brown", "black")))),
    ("Cotton Shirt", "clothing", 33, (("size", ("S", "M", "L")), ("colour", ("white", "sky", "green")))),
    ("Wool Socks", "clothing", 16, (("size", ("small", "medium", "large")), ("colour", ("grey", "red")))),
    ("Headphones", "electronics", 138, (("colour", ("black", "silver", "blue")), ("fit", ("over-ear", "on-ear")))),
    ("Bike Light", "outdoor", 27, (("mount", ("handlebar", "helmet", "seatpost")), ("power", ("battery", "usb")))),
    ("Backpack", "outdoor", 83, (("volume", ("18 l", "26 l", "40 l")), ("colour", ("slate", "orange")))),
    ("Water Bottle", "outdoor", 22, (("volume", ("0.5 l", "0.75 l", "1 l")), ("colour", ("steel", "green")))),
)
"""(name, category, approximate price in dollars, options with their values)"""

FIRST_NAMES = (
    "Amara", "Bela", "Chiara", "Darius", "Elif", "Farid", "Greta", "Hugo", "Ines", "Jonas", "Kaya", "Leila", "Mateo",
    "Nadia", "Oskar", "Priya", "Quentin", "Rosa", "Samir", "Tilda", "Umar", "Vera", "Wanda", "Yusuf",
)  # fmt: skip
LAST_NAMES = (
    "Adeyemi", "Brandt", "Castellano", "Dubois", "Eriksen", "Farkas", "Galvez", "Hoffer", "Ivanova", "Jansen", "Kimura",
    "Lindqvist", "Moreau", "Nowak", "Okafor", "Petrov", "Quispe", "Rossi", "Sandhu", "Tanaka", "Usman", "Vogel",
)  # fmt: skip
STREETS = (
    "Mill Lane", "Harbour Street", "Juniper Road", "Chapel Hill", "Orchard Avenue", "Station Road", "Quarry Way",
    "Linden Street", "Weaver Court", "Meadow Drive", "Foundry Lane", "Beacon Street",
)  # fmt: skip
CITIES = (
    ("Alder Falls", "OR", "971"), ("Brookhaven", "GA", "303"), ("Carrow", "OH", "441"), ("Dunmore", "PA", "185"),
    ("Elkwater", "MT", "597"), ("Fairmont", "WV", "265"), ("Granby", "CO", "804"), ("Hollis", "NH", "030"),
)  # fmt: skip
"""(city, state, the first three digits of its ZIP codes)"""
CARRIERS = ("Northline", "Parcel Fox", "Wagtail Post")
CARDS = ("Visa", "Mastercard")

USERS, PRODUCT_COUNT, ORDERS = 8, 12, 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Stock:
    """What a database is drawn from."""

    first_names: tuple[str, ...] = FIRST_NAMES
    last_names: tuple[str, ...] = LAST_NAMES
    products: tuple[ProductEntry, ...] = PRODUCTS


def make_database(rng: Random) -> Database:
    """Draws a shop; every customer has at least two orders."""
    database = make_empty_database(rng, Stock(), users=USERS, products=PRODUCT_COUNT)
    users = list(database.users.values())
    for index in range(ORDERS):
        status: OrderStatus = rng.choice(("pending", "shipped", "delivered", "delivered", "cancelled"))
        make_order(rng, database, users[index % USERS], status)
    return database


def make_empty_database(rng: Random, stock: Stock, *, users: int, products: int) -> Database:
    """Draws a shop without orders."""
    database = Database(users={}, products={}, orders={})
    skus = set[str]()
    for entry in rng.sample(stock.products, products):
        product = _product(rng, database, skus, *entry)
        database.products[product.product_id] = product
    for first, last in zip(rng.sample(stock.first_names, users), rng.sample(stock.last_names, users), strict=True):
        user = _user(rng, first, last)
        database.users[user.user_id] = user
    return database


def make_order(
    rng: Random,
    database: Database,
    user: User,
    status: OrderStatus,
    *,
    lines: int | None = None,
    delivered_days_ago: int | None = None,
    without: Collection[str] = (),
) -> Order:
    """Adds an order of `user` to the database, with dates that fit its status.

    Args:
        lines: Number of lines, each of another product; 1 to 3 by default.
        delivered_days_ago: For orders that arrived; 3 to 24 by default.
        without: Ids of products that the order must not contain.
    """
    offered = [product for product in database.products.values() if product.product_id not in without]
    products = rng.sample(offered, lines or rng.randint(1, 3))
    bought = [(product, rng.choice(product.variants)) for product in products]
    arrived = status in ("delivered", "return requested", "exchange requested")
    days_ago = delivered_days_ago if delivered_days_ago is not None else rng.randint(3, 24)
    order = Order(
        order_id=_fresh(rng, database.orders, "W", 5),
        user_id=user.user_id,
        status=status,
        placed_on=TODAY - timedelta(days=(days_ago + rng.randint(3, 8)) if arrived else rng.randint(1, 4)),
        lines=cast("list[Line]", [_line(product, variant) for product, variant in bought]),
        total=sum((variant.price for _, variant in bought), Decimal(0)),
        address=user.address,
        payment_method_id=rng.choice([m for m in user.payment_methods if m.kind != "gift_card"]).payment_method_id,
        delivered_on=TODAY - timedelta(days=days_ago) if arrived else None,
        cancel_reason="no_longer_needed" if status == "cancelled" else None,
        # Given, since pydantic makes a deep copy of each default.
        returned=[],
        exchanged=[],
        ledger=[],
    )
    if status == "shipped":
        order.shipment = Shipment(
            carrier=rng.choice(CARRIERS),
            tracking_code=f"TRK{rng.randrange(10**6, 10**7)}",
            expected_on=TODAY + timedelta(days=rng.randint(1, 9)),
        )
    database.orders[order.order_id] = order
    return order


def make_address(rng: Random) -> Address:
    city, state, area = rng.choice(CITIES)
    street = f"{rng.randint(2, 189)} {rng.choice(STREETS)}"
    return Address(street=street, city=city, state=state, zip_code=f"{area}{rng.randint(10, 99)}")


def _user(rng: Random, first: str, last: str) -> User:
    number = rng.randint(10, 99)
    card = f"{rng.randint(1000, 9999)}"
    methods: list[dict[str, Any]] = [
        {"payment_method_id": f"card_{card}", "kind": "card", "label": f"{rng.choice(CARDS)} ending in {card}"},
        {"payment_method_id": f"paypal_{rng.randint(1000, 9999)}", "kind": "paypal", "label": "PayPal account"},
    ]
    if rng.random() < 0.5:
        digits = f"{rng.randint(1000, 9999)}"
        balance = _dollars(100 * rng.randint(40, 200))
        label = f"gift card {digits}"
        methods.append({"payment_method_id": f"gift_{digits}", "kind": "gift_card", "label": label, "balance": balance})
    return User(
        user_id=f"{first.lower()}_{last.lower()}_{number}",
        first_name=first,
        last_name=last,
        email=f"{first.lower()}.{last.lower()}{number}@example.com",
        address=make_address(rng),
        payment_methods=cast("list[PaymentMethod]", methods),
    )


def _product(
    rng: Random,
    database: Database,
    skus: set[str],
    name: str,
    category: str,
    dollars: int,
    axes: Axes,
) -> Product:
    chosen = rng.sample(_options(axes), rng.randint(4, 5))
    # Prices of one product differ, so that every swap has a price difference to report.
    cents = rng.sample(range(dollars * 80, dollars * 125), len(chosen))
    variants: list[dict[str, Any]] = []
    for options, price in zip(chosen, cents, strict=True):
        sku = _fresh(rng, skus, "V", 4)
        skus.add(sku)
        stock = 0 if len(variants) == 3 else rng.randint(2, 40)  # one variant of each product is sold out
        variants.append({"sku": sku, "options": options, "price": _dollars(price), "stock": stock})
    number = _fresh(rng, database.products, "P", 3)
    return Product(product_id=number, name=name, category=category, variants=cast("list[Variant]", variants))


@cache
def _options(axes: Axes) -> list[dict[str, str]]:
    """All combinations of the options' values."""
    names = [axis for axis, _ in axes]
    return [dict(zip(names, values, strict=True)) for values in combinations(*(values for _, values in axes))]


def _dollars(cents: int) -> Decimal:
    return Decimal(cents).scaleb(-2)


def _line(product: Product, variant: Variant) -> dict[str, Any]:
    return {
        "sku": variant.sku,
        "product_id": product.product_id,
        "name": product.name,
        "options": variant.options,
        "price": variant.price,
    }


def _fresh(rng: Random, taken: set[str] | dict[str, Order] | dict[str, Product], letter: str, digits: int) -> str:
    while (made := f"{letter}{rng.randrange(10 ** (digits - 1), 10**digits)}") in taken:
        pass
    return made


for *_, each in PRODUCTS:
    _options(each)  # when the module is imported, so that forked processes share them
