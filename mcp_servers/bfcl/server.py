"""The leaderboard's functions as tools, its scripted user, and its checker as the score."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from mcp.server.context import LifespanContextT, RequestT
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.tools import Tool
from mcp_types import CallToolResult, TextContent
from pydantic import PrivateAttr

from mcp_servers.bfcl import package
from mcp_servers.bfcl.calls import FAILED, read
from mcp_servers.bfcl.documents import Function, load_functions
from mcp_servers.bfcl.package import CATEGORIES, Category
from mcp_servers.bfcl.tasks import Task, find_task, tasks_of
from mcp_servers.bfcl.world import World
from mcp_servers.kit import CHANGE, Call, Expert, ExpertTurn, Harness, Reply, Split, TaskItem, parser, serve

WorldOf = Callable[[Context[Any, Any]], World]
"""The world of a request's trajectory."""


class FunctionTool(Tool):
    """A tool whose arguments reach the API class as they were sent, neither validated nor converted."""

    _world_of: WorldOf = PrivateAttr()

    @classmethod
    def of(cls, function: Function, world_of: WorldOf) -> FunctionTool:
        made = Tool.from_function(
            _not_called,
            name=function.name,
            description=function.description,
            # Every call counts in the score, so none may be sent twice: not even of a function that only reads.
            annotations=CHANGE,
            structured_output=False,
        )
        fields: dict[str, Any] = {name: getattr(made, name) for name in Tool.model_fields}
        fields["parameters"] = function.input_schema
        tool = cls(**fields)
        tool._world_of = world_of
        return tool

    async def run(
        self,
        arguments: dict[str, Any],
        context: Context[LifespanContextT, RequestT],
        convert_result: bool = False,
    ) -> CallToolResult:
        text = self._world_of(context).call(self.name, arguments)
        return CallToolResult(content=[TextContent(type="text", text=text)], is_error=text.startswith(FAILED))


async def _not_called() -> str:
    """`FunctionTool.run` takes its place: the SDK makes tools of functions only."""
    raise NotImplementedError


def create_server(*, category: Category = "base", max_trajectories: int = 4096) -> MCPServer:
    """Creates the server. It lists the tasks of one category, and can be reset to those of all."""
    functions = load_functions()
    tools: list[Tool] = [FunctionTool.of(function, lambda ctx: harness.world(ctx)) for function in functions.values()]
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
    arguments = parser("mcp_servers.bfcl", "Multi-turn tasks of the Berkeley Function Calling Leaderboard.")
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
