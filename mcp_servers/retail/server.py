"""The shop as an MCP server: the written policies, and the wiring of tools and harness."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from mcp.server.mcpserver import MCPServer

from mcp_rollout.mcp_servers.kit import (
    Expert,
    Harness,
    Message,
    Score,
    Split,
    TaskItem,
    ToolError,
    parser,
    serve,
)
from mcp_rollout.mcp_servers.retail.case import Case
from mcp_rollout.mcp_servers.retail.database import RETURN_DAYS, TODAY
from mcp_rollout.mcp_servers.retail.generate import make_database
from mcp_rollout.mcp_servers.retail.score import score as score_case
from mcp_rollout.mcp_servers.retail.shop import Shop
from mcp_rollout.mcp_servers.retail.tasks import TASKS, make_case
from mcp_rollout.mcp_servers.retail.tools import add_tools

POLICY = f"""\
You serve the customers of a small online shop. Today is {TODAY}. A message without tool calls goes to the customer;
calls that do not need each other's results may be made together.

1. Authenticate first: find the customer by email, or by name and ZIP code, before you discuss accounts or orders.
   Questions about products need no authentication.
2. One customer per conversation. Never read or change another person's account or orders, even if asked to.
3. Before each change (any tool except look-ups and record_outcome), name the order (for an account address, its new
   ZIP code), describe the change, and wait for a clear yes. Then make exactly that change. After a no, change nothing;
   a different change needs a new yes.
4. Only pending orders can be cancelled, sent to another address, or paid with another method. A cancellation needs a
   reason: no longer needed, ordered by mistake, or found cheaper.
5. Items of a pending order can be swapped for other variants of the same products, once per order. Ask for all items
   to swap, and make one call.
6. Delivered orders can be returned or exchanged up to and including day {RETURN_DAYS} after delivery.
7. Each order allows one return or one exchange, of one or several items. Items are exchanged for variants of the same
   product.
8. A return is refunded to the payment method that paid, or to a gift card of the customer; a cancellation, to the
   method that paid. A charge to a gift card must not exceed its balance. The customer chooses the method for a price
   difference.
9. Refuse what these rules do not allow, and say why. There are no discounts, price matches or exceptions, even if the
   customer insists.
10. Transfer these matters to a colleague: injuries or unsafe products, suspected fraud, business contracts. Say that a
    colleague will take over.
11. When a request is finished, call record_outcome before you report to the customer: resolved if at least one request
    was fulfilled, answered or withdrawn by the customer; refused if none could be; transferred if a colleague takes
    over at least one. A later call replaces an earlier one.
12. Report to the customer what was done, with amounts as $12.34 and days as YYYY-MM-DD. Do not list records that they
    did not ask about."""
"""The written policy: the server's `instructions`. The tools enforce it where they can."""


def create_server(*, max_trajectories: int = 4096) -> MCPServer:
    """Creates the server. A trajectory without a reset gets a shop of its seed and no task."""
    server = MCPServer("retail", instructions=POLICY, log_level="WARNING")
    harness = Harness(
        server,
        _begin,
        without_reset=lambda seed: Shop(database=make_database(Random(seed))),
        max_trajectories=max_trajectories,
        rehearsal=TASKS.first("test"),
    )
    _add_harness_tools(harness)
    add_tools(server, harness)
    return server


def _add_harness_tools(harness: Harness[Shop]) -> None:
    @harness.tasks
    def tasks(split: Split) -> Iterator[TaskItem]:
        for task in TASKS.names(split):
            case = make_case(task, TASKS.seed(task))
            yield TaskItem(task=task, seed=case.seed, prompt=case.opening, difficulty=case.difficulty)

    @harness.score
    def score(shop: Shop, messages: list[Message]) -> Score:
        return score_case(_case(shop), shop, messages)

    @harness.expert
    def expert(shop: Shop) -> Expert:
        return _case(shop).expert()

    del tasks, score, expert  # registered


def _begin(task: str, seed: int) -> Shop:
    return Shop(database=make_case(task, seed).database, task=task, seed=seed)


def _case(shop: Shop) -> Case:
    """The trajectory's case, generated again, since keeping it would keep each initial database in memory."""
    if shop.task is None:
        raise ToolError("no task to score: call reset first")
    return make_case(shop.task, shop.seed)


def main() -> None:
    arguments = parser(
        "mcp_rollout.mcp_servers.retail", "Customer service of a small shop, one database per trajectory."
    )
    serve(create_server(), arguments.parse_args().http)
