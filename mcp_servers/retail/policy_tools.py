"""The tools that the policy sees: reading, and writing."""

from __future__ import annotations

from typing import Annotated

from mcp.server.mcpserver import Context, MCPServer
from mcp_types import CallToolResult
from pydantic import Field

from mcp_servers.kit import CHANGE, NOTE, READ, SET, Harness, ToolError
from mcp_servers.retail import changes
from mcp_servers.retail.desk import Desk, Outcome, ReturnWindow
from mcp_servers.retail.results import OrderList, ProductList, Quote, Recorded, Tracking, result, summary
from mcp_servers.retail.world import Address, CancelReason, Order, OrderStatus, Product, Replacement, User

OrderId = Annotated[str, Field(description="For example W12345")]
PaymentMethodId = Annotated[str, Field(description="One of the customer's payment methods, for example card_1234")]
Skus = Annotated[list[str], Field(description="SKUs of items in the order", min_length=1, max_length=10)]
Replacements = Annotated[
    list[Replacement],
    Field(description="All items to swap, each with its new variant", min_length=1, max_length=10),
]

MAX_FOUND = 4


def add_read_tools(server: MCPServer, harness: Harness[Desk]) -> None:
    # The two that find a customer also open the account for the rest of the conversation: not READ.
    @server.tool(annotations=NOTE)
    async def find_user_by_email(email: str, ctx: Context) -> Annotated[CallToolResult, User]:
        """Authenticate the customer by the email address they give."""
        desk = harness.world(ctx)
        wanted = email.strip().lower()
        return result(desk.identify(next((u for u in desk.world.users.values() if u.email == wanted), None)))

    @server.tool(annotations=NOTE)
    async def find_user_by_name_zip(
        first_name: str,
        last_name: str,
        zip_code: Annotated[str, Field(description="Of the account's address, five digits", pattern=r"^[0-9]{5}$")],
        ctx: Context,
    ) -> Annotated[CallToolResult, User]:
        """Authenticate the customer by name and ZIP code, where they cannot give an email address."""
        desk = harness.world(ctx)
        wanted = (first_name.strip().lower(), last_name.strip().lower(), zip_code)
        users = desk.world.users.values()
        found = [u for u in users if (u.first_name.lower(), u.last_name.lower(), u.address.zip_code) == wanted]
        return result(desk.identify(found[0] if found else None))

    @server.tool(annotations=READ)
    async def get_user(user_id: str, ctx: Context) -> Annotated[CallToolResult, User]:
        """The authenticated customer's account: address, email and payment methods."""
        return result(harness.world(ctx).user(user_id))

    @server.tool(annotations=READ)
    async def list_orders(
        ctx: Context,
        status: Annotated[OrderStatus | None, Field(description="Only orders in this state")] = None,
    ) -> Annotated[CallToolResult, OrderList]:
        """The customer's orders, newest first, with the names of their items."""
        desk = harness.world(ctx)
        orders = desk.world.orders_of(desk.customer())
        orders.sort(key=lambda order: (order.placed_on, order.order_id), reverse=True)
        return result(OrderList(orders=[summary(o) for o in orders if status is None or o.status == status]))

    @server.tool(annotations=READ)
    async def get_order(order_id: OrderId, ctx: Context) -> Annotated[CallToolResult, Order]:
        """One order of the customer: state, items with SKUs and prices, total, address, payment, shipment."""
        desk = harness.world(ctx)
        order = desk.order(order_id)
        desk.show("get_order", order.order_id)
        return result(order)

    @server.tool(annotations=READ)
    async def get_product(
        product_id: Annotated[str, Field(description="For example P123")], ctx: Context
    ) -> Annotated[CallToolResult, Product]:
        """One product with all its variants, their prices and what is in stock."""
        desk = harness.world(ctx)
        product = desk.product(product_id)
        desk.show("get_product", product.product_id)
        return result(product)

    @server.tool(annotations=READ)
    async def search_products(
        query: Annotated[str, Field(description="Part of a product's name, or a category", min_length=2)],
        ctx: Context,
        max_price: Annotated[float | None, Field(description="In dollars, for one variant at least", gt=0)] = None,
        in_stock_only: Annotated[bool, Field(description="Leave out variants that are sold out")] = False,
    ) -> Annotated[CallToolResult, ProductList]:
        """Find products and their variants. Needs no authentication."""
        desk, wanted = harness.world(ctx), query.strip().lower()
        found: list[Product] = []
        for product in desk.world.products.values():
            if wanted not in product.name.lower() and wanted != product.category:
                continue
            variants = [variant for variant in product.variants if variant.stock or not in_stock_only]
            if any(max_price is None or variant.price <= max_price for variant in variants):
                found.append(product.model_copy(update={"variants": variants}))
        if not found:
            raise ToolError(f"nothing matches {query!r}; try one word of the product's name")
        for product in found[:MAX_FOUND]:
            desk.show("search_products", product.product_id)
        return result(ProductList(products=found[:MAX_FOUND]))

    @server.tool(annotations=READ)
    async def check_return_window(order_id: OrderId, ctx: Context) -> Annotated[CallToolResult, ReturnWindow]:
        """Whether an order can still be returned or exchanged, until which day, and why not."""
        desk = harness.world(ctx)
        desk.tried.add("check_return_window")
        window = desk.return_window(desk.order(order_id))
        desk.show("check_return_window", window.order_id)
        return result(window)

    @server.tool(annotations=READ)
    async def quote_replacement(
        order_id: OrderId, items: Replacements, ctx: Context
    ) -> Annotated[CallToolResult, Quote]:
        """The price difference of swapping items for other variants, in dollars; negative means a refund."""
        desk = harness.world(ctx)
        difference = changes.price_difference(desk, order_id, items)
        return result(Quote(order_id=desk.order(order_id).order_id, difference=difference))

    @server.tool(annotations=READ)
    async def track_shipment(order_id: OrderId, ctx: Context) -> Annotated[CallToolResult, Tracking]:
        """Carrier, tracking code and expected day of a shipped order."""
        desk = harness.world(ctx)
        desk.tried.add("track_shipment")
        order = desk.order(order_id)
        if order.shipment is None:
            raise ToolError(f"order {order.order_id} is {order.status}: only shipped orders can be tracked")
        desk.show("track_shipment", order.order_id)
        return result(Tracking(order_id=order.order_id, status=order.status, shipment=order.shipment))


def add_write_tools(server: MCPServer, harness: Harness[Desk]) -> None:
    @server.tool(annotations=CHANGE)
    async def cancel_order(order_id: OrderId, reason: CancelReason, ctx: Context) -> Annotated[CallToolResult, Order]:
        """Cancel a pending order and refund its total to the method that paid. Needs the customer's yes."""
        desk = harness.world(ctx)
        desk.tried.add("cancel_order")
        return _made(desk, "cancel_order", changes.cancel(desk, order_id, reason))

    @server.tool(annotations=SET)
    async def modify_order_address(
        order_id: OrderId, address: Address, ctx: Context
    ) -> Annotated[CallToolResult, Order]:
        """Send a pending order to another address. Needs the customer's yes."""
        desk = harness.world(ctx)
        return _made(desk, "modify_order_address", changes.set_order_address(desk, order_id, address))

    @server.tool(annotations=CHANGE)
    async def modify_order_items(
        order_id: OrderId, items: Replacements, payment_method_id: PaymentMethodId, ctx: Context
    ) -> Annotated[CallToolResult, Order]:
        """Swap items of a pending order for other variants, once; the method bears the difference. Needs a yes."""
        desk = harness.world(ctx)
        return _made(desk, "modify_order_items", changes.modify_items(desk, order_id, items, payment_method_id))

    @server.tool(annotations=SET)
    async def change_payment(
        order_id: OrderId, payment_method_id: PaymentMethodId, ctx: Context
    ) -> Annotated[CallToolResult, Order]:
        """Let another payment method pay a pending order. Needs the customer's yes."""
        desk = harness.world(ctx)
        return _made(desk, "change_payment", changes.set_payment(desk, order_id, payment_method_id))

    @server.tool(annotations=CHANGE)
    async def return_items(
        order_id: OrderId,
        skus: Skus,
        refund_to: Annotated[str, Field(description="The method that paid, or a gift card of the customer")],
        ctx: Context,
    ) -> Annotated[CallToolResult, Order]:
        """Request the return of delivered items, once per order. Needs the customer's yes."""
        desk = harness.world(ctx)
        return _made(desk, "return_items", changes.return_items(desk, order_id, skus, refund_to))

    @server.tool(annotations=CHANGE)
    async def exchange_items(
        order_id: OrderId, items: Replacements, payment_method_id: PaymentMethodId, ctx: Context
    ) -> Annotated[CallToolResult, Order]:
        """Request the exchange of delivered items for other variants, once per order. Needs the customer's yes."""
        desk = harness.world(ctx)
        return _made(desk, "exchange_items", changes.exchange_items(desk, order_id, items, payment_method_id))

    @server.tool(annotations=SET)
    async def update_user_address(address: Address, ctx: Context) -> Annotated[CallToolResult, User]:
        """Set the address of the customer's account; orders keep theirs. Needs the customer's yes."""
        return result(changes.set_user_address(harness.world(ctx), address))

    @server.tool(annotations=SET)
    async def record_outcome(
        outcome: Outcome,
        summary: Annotated[str, Field(description="One sentence for the file", max_length=400)],
        ctx: Context,
    ) -> Annotated[CallToolResult, Recorded]:
        """Record how the customer's requests ended, before you tell them. A later call replaces an earlier one."""
        changes.record_outcome(harness.world(ctx), outcome)
        return result(Recorded(outcome=outcome))


def _made(desk: Desk, tool: str, order: Order) -> CallToolResult:
    """The order as the change left it, which the agent has seen now."""
    desk.show(tool, order.order_id)
    return result(order)
