"""The leaderboard's functions as tools, its scripted user, and its checker as the score."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.tools import Tool
from mcp_types import CallToolResult

from mcp_rollout.mcp_servers.bfcl import package
from mcp_rollout.mcp_servers.bfcl.calls import FAILED, read
from mcp_rollout.mcp_servers.bfcl.documents import Function, load_functions
from mcp_rollout.mcp_servers.bfcl.package import CATEGORIES, Category
from mcp_rollout.mcp_servers.bfcl.tasks import Task, find_task, tasks_of
from mcp_rollout.mcp_servers.bfcl.world import World
from mcp_rollout.mcp_servers.kit import (
    Call,
    Expert,
    ExpertTurn,
    Harness,
    Reply,
    SchemaTool,
    Split,
    TaskItem,
    parser,
    serve,
    tool_result,
)


def create_server(*, category: Category = "base", max_trajectories: int = 4096) -> MCPServer:
    """Creates the server. It lists the tasks of one category, and can be reset to those of all."""
    functions = load_functions()

    async def run(ctx: Context, name: str, arguments: dict[str, Any]) -> CallToolResult:
        text = harness.world(ctx).call(name, arguments)
        return tool_result(text, is_error=text.startswith(FAILED))

    tools: list[Tool] = [
        SchemaTool.of(each.name, each.description, each.input_schema, run) for each in functions.values()
    ]
    server = MCPServer("bfcl", log_level="WARNING", tools=tools)
    harness = Harness(server, lambda task, _: World.begin(find_task(task)), max_trajectories=max_trajectories)

    @harness.tasks
    def tasks(split: Split) -> Iterator[TaskItem]:
        for task in tasks_of(category, split):
            yield TaskItem(
                task=task.name,
                # Nothing is random beyond the task: the classes seed their generators with the scenario.
                seed=task.scenario,
                prompt=task.message(0, functions),
                tools=[name for name in task.functions if name not in task.revealed],
                later_tools=list(task.revealed),
            )

    @harness.start
    def start(world: World) -> str:
        return world.task.message(0, functions)

    @harness.reply
    def reply(world: World, message: str) -> Reply:
        world.end_turn()
        if world.over:
            return Reply(message="", done=True)
        task, turn = world.task, world.turn
        return Reply(message=task.message(turn, functions), done=False, tools=task.newly_allowed(turn) or None)

    harness.score(World.score)

    @harness.expert
    def script(world: World) -> Expert:
        return Expert(turns=list(play(world.task, functions)))

    del tasks, start, reply, script  # registered
    return server


def main() -> None:
    arguments = parser("mcp_rollout.mcp_servers.bfcl", "Multi-turn tasks of the Berkeley Function Calling Leaderboard.")
    arguments.add_argument(
        "--category", choices=CATEGORIES, default="base", help="whose tasks are listed (default: %(default)s)"
    )
    given = arguments.parse_args()
    serve(create_server(category=given.category), given.http)


def play(task: Task, functions: dict[str, Function]) -> Iterator[ExpertTurn]:
    for calls in task.ground_truth:
        if calls:
            yield ExpertTurn(calls=[_call(text, functions) for text in calls])
        yield ExpertTurn(content="Done." if calls else "This cannot be done with what is known and available so far.")


def _call(text: str, functions: dict[str, Function]) -> Call:
    """A call of the ground truth with its positional arguments named by the method's signature."""
    name, positional, named = read(text)
    method: Any = getattr(package.api_class(functions[name].class_name), name)
    parameters = list(inspect.signature(method).parameters)[1 : len(positional) + 1]  # the first is `self`
    return Call(name=name, arguments={**dict(zip(parameters, positional, strict=True)), **named})
