"""The policy's tools: look-ups of accounts, orders and products, and changes.

Each answers with one record, as structured content and as the same record in compact JSON text.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated

from mcp.server.mcpserver import Context, MCPServer
from mcp_types import CallToolResult, TextContent
from pydantic import Field

from mcp_rollout.mcp_servers.kit import CHANGE, NOTE, READ, SET, Harness, ToolError
from mcp_rollout.mcp_servers.retail.database import (
    Address,
    CancelReason,
    Order,
    OrderStatus,
    Product,
    Record,
    Replacement,
    Shipment,
    User,
)
from mcp_rollout.mcp_servers.retail.shop import WRITES, Outcome, ReturnWindow, Shop, price_difference, set_user_address

OrderId = Annotated[str, Field(description="For example W12345")]
PaymentMethodId = Annotated[str, Field(description="One of the customer's payment methods, for example card_1234")]
Skus = Annotated[list[str], Field(description="SKUs of items in the order", min_length=1, max_length=10)]
Replacements = Annotated[
    list[Replacement],
    Field(description="All items to swap, each with its new variant", min_length=1, max_length=10),
]

MAX_FOUND = 4
"""Products that a search returns at most."""


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


def add_tools(server: MCPServer, harness: Harness[Shop]) -> None:
    """Adds all tools, in the order in which the policy reads them."""
    for add in (_add_customer_tools, _add_product_tools, _add_order_tools, _add_change_tools):
        add(server, harness)


def _add_customer_tools(server: MCPServer, harness: Harness[Shop]) -> None:
    """Adds the tools that authenticate the customer and show the account and its orders."""

    # All tools are `async` and wait for nothing: the SDK runs plain functions on threads, several at a time.
    # The two that find a customer also open the account for the rest of the conversation, so they are not READ.
    @server.tool(annotations=NOTE)
    async def find_user_by_email(email: str, ctx: Context) -> Annotated[CallToolResult, User]:
        """Authenticate the customer by the email address they give."""
        shop = harness.world(ctx)
        wanted = email.strip().lower()
        return _result(shop.identify(next((u for u in shop.database.users.values() if u.email == wanted), None)))

    @server.tool(annotations=NOTE)
    async def find_user_by_name_zip(
        first_name: str,
        last_name: str,
        zip_code: Annotated[str, Field(description="Of the account's address, five digits", pattern=r"^[0-9]{5}$")],
        ctx: Context,
    ) -> Annotated[CallToolResult, User]:
        """Authenticate the customer by name and ZIP code, where they cannot give an email address."""
        shop = harness.world(ctx)
        wanted = (first_name.strip().lower(), last_name.strip().lower(), zip_code)
        users = shop.database.users.values()
        found = [u for u in users if (u.first_name.lower(), u.last_name.lower(), u.address.zip_code) == wanted]
        return _result(shop.identify(found[0] if found else None))

    @server.tool(annotations=READ)
    async def get_user(user_id: str, ctx: Context) -> Annotated[CallToolResult, User]:
        """The authenticated customer's account: address, email and payment methods."""
        return _result(harness.world(ctx).user(user_id))

    @server.tool(annotations=READ)
    async def list_orders(
        ctx: Context,
        status: Annotated[OrderStatus | None, Field(description="Only orders in this state")] = None,
    ) -> Annotated[CallToolResult, OrderList]:
        """The customer's orders, newest first, with the names of their items."""
        shop = harness.world(ctx)
        orders = shop.database.orders_of(shop.customer())
        orders.sort(key=lambda order: (order.placed_on, order.order_id), reverse=True)
        listed = [order for order in orders if status is None or order.status == status]
        for order in listed:
            shop.show("list_orders", order.order_id)
        return _result(OrderList(orders=[_summary(order) for order in listed]))

    @server.tool(annotations=READ)
    async def get_order(order_id: OrderId, ctx: Context) -> Annotated[CallToolResult, Order]:
        """One order of the customer: state, items with SKUs and prices, total, address, payment, shipment."""
        shop = harness.world(ctx)
        order = shop.order(order_id)
        shop.show("get_order", order.order_id)
        return _result(order)


def _add_product_tools(server: MCPServer, harness: Harness[Shop]) -> None:
    """Adds the tools that look up products."""

    @server.tool(annotations=READ)
    async def get_product(
        product_id: Annotated[str, Field(description="For example P123")], ctx: Context
    ) -> Annotated[CallToolResult, Product]:
        """One product with all its variants, their prices and what is in stock."""
        shop = harness.world(ctx)
        product = shop.product(product_id)
        shop.show("get_product", product.product_id)
        return _result(product)

    @server.tool(annotations=READ)
    async def search_products(
        query: Annotated[str, Field(description="Part of a product's name, or a category", min_length=2)],
        ctx: Context,
        max_price: Annotated[float | None, Field(description="In dollars, for one variant at least", gt=0)] = None,
        in_stock_only: Annotated[bool, Field(description="Leave out variants that are sold out")] = False,
    ) -> Annotated[CallToolResult, ProductList]:
        """Find products and their variants. Needs no authentication."""
        shop, wanted = harness.world(ctx), query.strip().lower()
        found: list[Product] = []
        for product in shop.database.products.values():
            if wanted not in product.name.lower() and wanted != product.category:
                continue
            variants = [variant for variant in product.variants if variant.stock or not in_stock_only]
            if any(max_price is None or variant.price <= max_price for variant in variants):
                found.append(product.model_copy(update={"variants": variants}))
        if not found:
            raise ToolError(f"nothing matches {query!r}; try one word of the product's name")
        for product in found[:MAX_FOUND]:
            shop.show("search_products", product.product_id)
        return _result(ProductList(products=found[:MAX_FOUND]))


def _add_order_tools(server: MCPServer, harness: Harness[Shop]) -> None:
    """Adds the tools that tell what can be done with an order."""

    @server.tool(annotations=READ)
    async def check_return_window(order_id: OrderId, ctx: Context) -> Annotated[CallToolResult, ReturnWindow]:
        """Whether an order can still be returned or exchanged, until which day, and why not."""
        shop = harness.world(ctx)
        shop.tried.add("check_return_window")
        window = shop.return_window(shop.order(order_id))
        shop.show("check_return_window", window.order_id)
        return _result(window)

    @server.tool(annotations=READ)
    async def quote_replacement(
        order_id: OrderId, items: Replacements, ctx: Context
    ) -> Annotated[CallToolResult, Quote]:
        """The price difference of swapping items for other variants, in dollars; negative means a refund."""
        shop = harness.world(ctx)
        difference = price_difference(shop, order_id, items)
        return _result(Quote(order_id=shop.order(order_id).order_id, difference=difference))

    @server.tool(annotations=READ)
    async def track_shipment(order_id: OrderId, ctx: Context) -> Annotated[CallToolResult, Tracking]:
        """Carrier, tracking code and expected day of a shipped order."""
        shop = harness.world(ctx)
        shop.tried.add("track_shipment")
        order = shop.order(order_id)
        if order.shipment is None:
            raise ToolError(f"order {order.order_id} is {order.status}: only shipped orders can be tracked")
        shop.show("track_shipment", order.order_id)
        return _result(Tracking(order_id=order.order_id, status=order.status, shipment=order.shipment))


def _add_change_tools(server: MCPServer, harness: Harness[Shop]) -> None:
    """Adds the tools that change the database or record the outcome."""

    @server.tool(annotations=CHANGE)
    async def cancel_order(order_id: OrderId, reason: CancelReason, ctx: Context) -> Annotated[CallToolResult, Order]:
        """Cancel a pending order and refund its total to the method that paid. Needs the customer's yes."""
        shop = harness.world(ctx)
        shop.tried.add("cancel_order")
        return _change(shop, "cancel_order", order_id, reason)

    @server.tool(annotations=SET)
    async def modify_order_address(
        order_id: OrderId, address: Address, ctx: Context
    ) -> Annotated[CallToolResult, Order]:
        """Send a pending order to another address. Needs the customer's yes."""
        return _change(harness.world(ctx), "modify_order_address", order_id, address)

    @server.tool(annotations=CHANGE)
    async def modify_order_items(
        order_id: OrderId, items: Replacements, payment_method_id: PaymentMethodId, ctx: Context
    ) -> Annotated[CallToolResult, Order]:
        """Swap items of a pending order for other variants, once; the method bears the difference. Needs a yes."""
        return _change(harness.world(ctx), "modify_order_items", order_id, items, payment_method_id)

    @server.tool(annotations=SET)
    async def change_payment(
        order_id: OrderId, payment_method_id: PaymentMethodId, ctx: Context
    ) -> Annotated[CallToolResult, Order]:
        """Let another payment method pay a pending order. Needs the customer's yes."""
        return _change(harness.world(ctx), "change_payment", order_id, payment_method_id)

    @server.tool(annotations=CHANGE)
    async def return_items(
        order_id: OrderId,
        skus: Skus,
        refund_to: Annotated[str, Field(description="The method that paid, or a gift card of the customer")],
        ctx: Context,
    ) -> Annotated[CallToolResult, Order]:
        """Request the return of delivered items, once per order. Needs the customer's yes."""
        return _change(harness.world(ctx), "return_items", order_id, skus, refund_to)

    @server.tool(annotations=CHANGE)
    async def exchange_items(
        order_id: OrderId, items: Replacements, payment_method_id: PaymentMethodId, ctx: Context
    ) -> Annotated[CallToolResult, Order]:
        """Request the exchange of delivered items for other variants, once per order. Needs the customer's yes."""
        return _change(harness.world(ctx), "exchange_items", order_id, items, payment_method_id)

    @server.tool(annotations=SET)
    async def update_user_address(address: Address, ctx: Context) -> Annotated[CallToolResult, User]:
        """Set the address of the customer's account; orders keep theirs. Needs the customer's yes."""
        return _result(set_user_address(harness.world(ctx), address))

    @server.tool(annotations=SET)
    async def record_outcome(
        outcome: Outcome,
        summary: Annotated[str, Field(description="One sentence for the file", max_length=400)],
        ctx: Context,
    ) -> Annotated[CallToolResult, Recorded]:
        """Record how the customer's requests ended, before you tell them. A later call replaces an earlier one."""
        shop = harness.world(ctx)
        shop.customer()  # refuses without an authenticated customer
        shop.outcome = outcome
        return _result(Recorded(outcome=outcome))


def _change(shop: Shop, tool: str, *arguments: object) -> CallToolResult:
    """Makes a change of an order and returns the order, which counts as looked up."""
    order = WRITES[tool](shop, *arguments)
    assert isinstance(order, Order)
    shop.show(tool, order.order_id)
    return _result(order)


def _summary(order: Order) -> OrderSummary:
    return OrderSummary(order_id=order.order_id, status=order.status, items=[line.name for line in order.lines])


def _result(record: Record) -> CallToolResult:
    """The record without its absent fields. The text is not indented, because the policy pays for every token."""
    return CallToolResult(
        content=[TextContent(text=record.model_dump_json(exclude_none=True))],
        structured_content=record.model_dump(mode="json", exclude_none=True),
    )
