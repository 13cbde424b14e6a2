"""Worlds from a random generator: the same generator state gives the same world in every process."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from decimal import Decimal
from itertools import product as combinations
from random import Random

from mcp_servers.retail.catalogue import CARDS, CARRIERS, CITIES, FIRST_NAMES, LAST_NAMES, PRODUCTS, STREETS
from mcp_servers.retail.world import (
    TODAY,
    Address,
    Line,
    Order,
    OrderStatus,
    PaymentMethod,
    Product,
    Shipment,
    User,
    Variant,
    World,
)

USERS, PRODUCT_COUNT, ORDERS = 8, 12, 20


def make_world(rng: Random) -> World:
    """A shop on an ordinary day; every customer has two orders or more."""
    world = World(users={}, products={}, orders={})
    for entry in rng.sample(PRODUCTS, PRODUCT_COUNT):
        product = _product(rng, world, *entry)
        world.products[product.product_id] = product
    for first, last in zip(rng.sample(FIRST_NAMES, USERS), rng.sample(LAST_NAMES, USERS), strict=True):
        user = _user(rng, first, last)
        world.users[user.user_id] = user
    users = list(world.users.values())
    for index in range(ORDERS):
        status: OrderStatus = rng.choice(("pending", "shipped", "delivered", "delivered", "cancelled"))
        make_order(rng, world, users[index % USERS], status)
    return world


def make_order(
    rng: Random,
    world: World,
    user: User,
    status: OrderStatus,
    *,
    lines: int | None = None,
    delivered_days_ago: int | None = None,
    without: Collection[str] = (),
) -> Order:
    """Adds an order of `user` to the world: 1 to 3 lines of different products, all dates fitting its status.

    Products whose ids are in `without` are not in it.
    """
    offered = [product for product in world.products.values() if product.product_id not in without]
    products = rng.sample(offered, lines or rng.randint(1, 3))
    bought = [_line(product, rng.choice(product.variants)) for product in products]
    arrived = status in ("delivered", "return requested", "exchange requested")
    days_ago = delivered_days_ago if delivered_days_ago is not None else rng.randint(3, 24)
    order = Order(
        order_id=_fresh(rng, world.orders, "W", 5),
        user_id=user.user_id,
        status=status,
        placed_on=TODAY - timedelta(days=(days_ago + rng.randint(3, 8)) if arrived else rng.randint(1, 4)),
        lines=bought,
        total=sum((line.price for line in bought), Decimal(0)),
        address=user.address,
        payment_method_id=rng.choice([m for m in user.payment_methods if m.kind != "gift_card"]).payment_method_id,
        delivered_on=TODAY - timedelta(days=days_ago) if arrived else None,
        cancel_reason="no_longer_needed" if status == "cancelled" else None,
    )
    if status == "shipped":
        order.shipment = Shipment(
            carrier=rng.choice(CARRIERS),
            tracking_code=f"TRK{rng.randrange(10**6, 10**7)}",
            expected_on=TODAY + timedelta(days=rng.randint(1, 9)),
        )
    world.orders[order.order_id] = order
    return order


def make_address(rng: Random) -> Address:
    city, state, area = rng.choice(CITIES)
    street = f"{rng.randint(2, 189)} {rng.choice(STREETS)}"
    return Address(street=street, city=city, state=state, zip_code=f"{area}{rng.randint(10, 99)}")


def _user(rng: Random, first: str, last: str) -> User:
    number = rng.randint(10, 99)
    card = f"{rng.randint(1000, 9999)}"
    methods = [
        PaymentMethod(payment_method_id=f"card_{card}", kind="card", label=f"{rng.choice(CARDS)} ending in {card}"),
        PaymentMethod(payment_method_id=f"paypal_{rng.randint(1000, 9999)}", kind="paypal", label="PayPal account"),
    ]
    if rng.random() < 0.5:
        digits = f"{rng.randint(1000, 9999)}"
        balance = _dollars(100 * rng.randint(40, 200))
        methods.append(
            PaymentMethod(
                payment_method_id=f"gift_{digits}", kind="gift_card", label=f"gift card {digits}", balance=balance
            )
        )
    return User(
        user_id=f"{first.lower()}_{last.lower()}_{number}",
        first_name=first,
        last_name=last,
        email=f"{first.lower()}.{last.lower()}{number}@example.com",
        address=make_address(rng),
        payment_methods=methods,
    )


def _product(
    rng: Random, world: World, name: str, category: str, dollars: int, axes: tuple[tuple[str, tuple[str, ...]], ...]
) -> Product:
    names = [axis for axis, _ in axes]
    chosen = rng.sample(list(combinations(*(values for _, values in axes))), rng.randint(4, 5))
    # Prices of one product differ, so that every swap has a price difference that someone has to be told.
    cents = rng.sample(range(dollars * 80, dollars * 125), len(chosen))
    taken = {variant.sku for product in world.products.values() for variant in product.variants}
    variants: list[Variant] = []
    for values, price in zip(chosen, cents, strict=True):
        sku = _fresh(rng, taken, "V", 4)
        taken.add(sku)
        stock = 0 if len(variants) == 3 else rng.randint(2, 40)  # one variant of each product is sold out
        options = dict(zip(names, values, strict=True))
        variants.append(Variant(sku=sku, options=options, price=_dollars(price), stock=stock))
    return Product(product_id=_fresh(rng, world.products, "P", 3), name=name, category=category, variants=variants)


def _dollars(cents: int) -> Decimal:
    return Decimal(cents).scaleb(-2)


def _line(product: Product, variant: Variant) -> Line:
    return Line(
        sku=variant.sku,
        product_id=product.product_id,
        name=product.name,
        options=dict(variant.options),
        price=variant.price,
    )


def _fresh(rng: Random, taken: set[str] | dict[str, Order] | dict[str, Product], letter: str, digits: int) -> str:
    while (made := f"{letter}{rng.randrange(10 ** (digits - 1), 10**digits)}") in taken:
        pass
    return made
