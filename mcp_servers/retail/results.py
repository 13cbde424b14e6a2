"""What the policy's tools answer: one record, as structured content and as the same in compact JSON text."""

from __future__ import annotations

from decimal import Decimal

from mcp_types import CallToolResult, TextContent

from mcp_servers.retail.desk import Outcome
from mcp_servers.retail.world import Order, OrderStatus, Product, Record, Shipment


class OrderSummary(Record):
    order_id: str
    status: OrderStatus
    items: list[str]


class OrderList(Record):
    orders: list[OrderSummary]


class ProductList(Record):
    products: list[Product]


class Quote(Record):
    order_id: str
    difference: Decimal
    """In dollars; negative where money comes back."""


class Tracking(Record):
    order_id: str
    status: OrderStatus
    shipment: Shipment


class Recorded(Record):
    outcome: Outcome


def summary(order: Order) -> OrderSummary:
    return OrderSummary(order_id=order.order_id, status=order.status, items=[line.name for line in order.lines])


def result(record: Record) -> CallToolResult:
    """The record without its absent fields. The text is not indented: the policy pays for every token it reads."""
    return CallToolResult(
        content=[TextContent(text=record.model_dump_json(exclude_none=True))],
        structured_content=record.model_dump(mode="json", exclude_none=True),
    )
