"""The depot as an MCP server: the policy's tools, and the storekeeper who brings the parcels."""

from __future__ import annotations

from typing import Annotated, Any

from mcp.server.mcpserver import Context, MCPServer
from mcp_types import CallToolResult
from pydantic import Field

from lab.worlds.depot.day import Day, expert, restored
from lab.worlds.depot.parcels import TASKS, Slice, Treatment, problem
from mcp_rollout.mcp_servers.kit import CHANGE, READ, Harness, Reply, digest, parser, serve, tool_result

INSTRUCTIONS = """\
You treat parcels. Inspect each one, treat it once, and report it. At the end close the book."""

Code = Annotated[str, Field(description="The parcel's code.")]


def create_server(tasks: Slice = "fitting") -> MCPServer:
    """Creates the server.

    Args:
        tasks: The slice that the tool `tasks` lists.
    """
    server = MCPServer("depot", instructions=INSTRUCTIONS, log_level="WARNING")
    rehearsal = TASKS[tasks].first("test")
    harness = Harness(server, lambda task, seed: Day(problem=problem(task, seed)), rehearsal=rehearsal)
    harness.tasks(lambda split: TASKS[tasks].items(split, problem))
    harness.start(lambda day: day.problem.prompt)
    harness.reply(_reply)
    harness.score(lambda day, _: day.score())
    harness.expert(expert)
    harness.snapshot(lambda day: day.saved())
    harness.restore(lambda saved: restored(problem(saved["task"], saved["seed"]), saved["state"]))
    _add_policy_tools(server, harness, has_key=tasks == "long")
    return server


def _reply(day: Day, message: str) -> Reply:
    return day.reply().model_copy(update={"state": digest(day.saved())})


def _add_policy_tools(server: MCPServer, harness: Harness[Day], *, has_key: bool) -> None:
    @server.tool(annotations=READ, structured_output=False)
    async def inspect(parcel: Code, ctx: Context) -> CallToolResult:
        """Look at the parcel."""
        day = harness.world(ctx)
        return tool_result(day.on_table(parcel).label, state=day.saved())

    def treat(ctx: Context, parcel: str, treatment: Treatment) -> CallToolResult:
        day = harness.world(ctx)
        reward = day.treat(parcel, treatment)
        has_effect = bool(day.state.treatments[day.state.current])
        return tool_result("done" if has_effect else "no effect", reward=reward, state=day.saved())

    @server.tool(annotations=CHANGE, structured_output=False)
    async def dry(parcel: Code, ctx: Context) -> CallToolResult:
        """Dry the parcel."""
        return treat(ctx, parcel, "dry")

    @server.tool(annotations=CHANGE, structured_output=False)
    async def tape(parcel: Code, ctx: Context) -> CallToolResult:
        """Tape the parcel."""
        return treat(ctx, parcel, "tape")

    @server.tool(annotations=CHANGE, structured_output=False)
    async def strap(parcel: Code, ctx: Context) -> CallToolResult:
        """Strap the parcel."""
        return treat(ctx, parcel, "strap")

    def close(ctx: Context, key: str = "") -> CallToolResult:
        day = harness.world(ctx)
        reward = day.close(key)
        return tool_result("closed", reward=reward, state=day.saved())

    async def close_book(ctx: Context) -> CallToolResult:
        """Close the book of the day."""
        return close(ctx)

    async def close_book_with_key(key: Annotated[str, Field(description="The book's key.")], ctx: Context) -> Any:
        """Close the book of the day."""
        return close(ctx, key)

    closing = close_book_with_key if has_key else close_book
    server.tool("close_book", annotations=CHANGE, structured_output=False)(closing)
    del inspect, dry, tape, strap  # registered


def main() -> None:
    arguments = parser("lab.worlds.depot", "Parcels to treat, and the storekeeper.")
    arguments.add_argument("--slice", choices=list(TASKS), default="fitting", help="the tasks that are listed")
    given = arguments.parse_args()
    serve(create_server(given.slice), given.http)
