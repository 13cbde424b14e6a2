"""The counter as an MCP server: retail's tools, and the tasks of one slice."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from mcp.server.mcpserver import MCPServer

from lab.worlds.shop.case import ShortCase
from lab.worlds.shop.case import score as score_case
from lab.worlds.shop.short_tasks import SHORT_TASKS, ShortSlice, make_short_case, short_case
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
from mcp_rollout.mcp_servers.retail.generate import make_database
from mcp_rollout.mcp_servers.retail.shop import Shop
from mcp_rollout.mcp_servers.retail.tools import add_tools

POLICY = """\
You serve a signed-in customer of a small shop who has one order. Look at it first, then do what fits. If the shop \
refuses what you try, say why."""


def create_server(slice_: ShortSlice) -> MCPServer:
    """Creates the server of a slice. A trajectory without a reset gets a shop of its seed and no task."""
    server = MCPServer("retail", instructions=POLICY, log_level="WARNING")
    tasks = SHORT_TASKS[slice_]
    harness = Harness(
        server,
        _begin,
        without_reset=lambda seed: Shop(database=make_database(Random(seed))),
        rehearsal=tasks.first("test"),
    )

    @harness.tasks
    def listed(split: Split) -> Iterator[TaskItem]:
        for task in tasks.names(split):
            case = make_short_case(slice_, task, tasks.seed(task))
            yield TaskItem(task=task, seed=case.seed, prompt=case.opening, difficulty=case.difficulty)

    @harness.score
    def score(shop: Shop, messages: list[Message]) -> Score:
        return score_case(_case(shop), shop, messages)

    @harness.expert
    def expert(shop: Shop) -> Expert:
        return _case(shop).expert()

    del listed, score, expert  # registered
    # In the order of retail.
    add_tools(server, harness)
    return server


def _begin(task: str, seed: int) -> Shop:
    case = short_case(task, seed)
    shop = Shop(database=case.database, task=task, seed=seed)
    shop.identify(case.customer)
    return shop


def _case(shop: Shop) -> ShortCase:
    """The trajectory's case, generated again, since keeping it would keep each initial database in memory."""
    if shop.task is None:
        raise ToolError("no task to score: call reset first")
    return short_case(shop.task, shop.seed)


def main() -> None:
    arguments = parser("lab.worlds.shop", "Short tasks at the counter of a shop, one database per trajectory.")
    arguments.add_argument(
        "--slice", dest="slice_", choices=list(SHORT_TASKS), required=True, help="the tasks that are listed"
    )
    given = arguments.parse_args()
    serve(create_server(given.slice_), given.http)
