"""What the parts of a task are told about: the world, its customer, and orders made to fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from mcp_servers.retail.generate import make_order
from mcp_servers.retail.world import Line, Order, OrderStatus, PaymentMethod, User, Variant, World


@dataclass(frozen=True, kw_only=True, slots=True)
class Story:
    rng: Random
    world: World
    customer: User
    _reserved: set[str] = field(default_factory=set[str])

    def order(self, status: OrderStatus, *, lines: int | None = None, delivered_days_ago: int | None = None) -> Order:
        """A new order of the customer, for one part alone, so that the parts never meet in one order."""
        return make_order(
            self.rng,
            self.world,
            self.customer,
            status,
            lines=lines,
            delivered_days_ago=delivered_days_ago,
            without=self._reserved,
        )

    def telling_product(self, order: Order) -> str | None:
        """A product's name by which the customer can tell this order from all their others, now and later."""
        lines = [line for other in self.world.orders_of(self.customer) for line in other.lines]
        for line in order.lines:
            if sum(other.product_id == line.product_id for other in lines) == 1:
                self._reserved.add(line.product_id)
                return line.name
        return None

    def method(self, payment_method_id: str) -> PaymentMethod:
        return next(m for m in self.customer.payment_methods if m.payment_method_id == payment_method_id)

    def other_method(self, order: Order) -> PaymentMethod:
        """A card or account of the customer that does not pay the order yet."""
        others = [m for m in self.customer.payment_methods if m.payment_method_id != order.payment_method_id]
        return next(m for m in others if m.kind != "gift_card")

    def swap(self, line: Line) -> Variant:
        """Another variant in stock of the same product."""
        variants = self.world.products[line.product_id].variants
        return self.rng.choice([variant for variant in variants if variant.stock and variant.sku != line.sku])

    def say(self, *phrasings: str) -> str:
        return self.rng.choice(phrasings)


def named(lines: Sequence[Line]) -> str:
    """``the Teapot and the Wool Socks``"""
    return " and ".join(f"the {line.name}" for line in lines)


def described(options: dict[str, str]) -> str:
    """``colour black, base clamp``"""
    return ", ".join(f"{name} {value}" for name, value in options.items())
