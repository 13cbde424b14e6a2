"""The problems as an MCP server: the calculator is the policy's, the user and the score are the harness's."""

from __future__ import annotations

from typing import Annotated

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from mcp_servers.calculator.arithmetic import MAX_CHARACTERS, ArithmeticRefused, evaluate
from mcp_servers.gsm8k_tools import problems
from mcp_servers.gsm8k_tools.attempts import MAX_ATTEMPTS, Attempts, OutOfOrder
from mcp_servers.gsm8k_tools.expert import expert as scripted_expert
from mcp_servers.gsm8k_tools.problems import Problem
from mcp_servers.gsm8k_tools.work import results_within
from mcp_servers.kit.answers import Done, Expert, Opening, Reply, Score, Split, TaskItem, TaskList
from mcp_servers.kit.messages import Message
from mcp_servers.kit.roles import READ, harness_tool
from mcp_servers.kit.state import TrajectoryState

INSTRUCTIONS = """\
You solve word problems. Take them apart into steps and calculate each step with the tool, never in your head; steps
that do not need each other's results may be calculated together. Then say the result, with one line of exactly this
form:
Answer: N
The user says whether it is right. If it is not, go through the steps again and answer anew. The earlier an answer is
right, the better."""

Expression = Annotated[
    str,
    Field(
        description="Numbers, parentheses and + - * / // % **, for example (3 + 4) * 12",
        max_length=MAX_CHARACTERS,
    ),
]


def create_server(*, attempts: int = MAX_ATTEMPTS) -> MCPServer:
    """The server.

    Args:
        attempts: How many answers the user takes before giving up.
    """
    server = MCPServer("gsm8k_tools", instructions=INSTRUCTIONS, log_level="WARNING")
    state = TrajectoryState[Attempts]()
    _add_calculator(server, state)
    _add_user(server, state)
    _add_harness_tools(server, state, attempts)
    return server


def _add_calculator(server: MCPServer, state: TrajectoryState[Attempts]) -> None:
    # The results are kept as a set: the same call twice leaves what it left once.
    @server.tool(annotations=READ)
    async def calculate(expression: Expression, ctx: Context) -> int | float:
        """Calculate an arithmetic expression."""
        trajectory = state.of(ctx)
        try:
            trajectory.calculated |= results_within(expression)
            return evaluate(expression)
        except ArithmeticRefused as error:
            raise ToolError(str(error)) from error


def _add_user(server: MCPServer, state: TrajectoryState[Attempts]) -> None:
    @harness_tool(server, "start")
    async def start(ctx: Context) -> Opening:
        """The problem, as the user tells it; asking again gives the same."""
        return Opening(message=state.of(ctx).problem.prompt)

    @harness_tool(server, "reply")
    async def reply(seq: Annotated[int, Field(description="1, 2, 3, ...")], message: str, ctx: Context) -> Reply:
        """Whether the answer is right; a repeated number gives the same reply."""
        try:
            return state.of(ctx).reply(seq, message)
        except OutOfOrder as error:
            raise ToolError(str(error)) from error


def _add_harness_tools(server: MCPServer, state: TrajectoryState[Attempts], attempts: int) -> None:
    @harness_tool(server, "tasks")
    async def tasks(split: Split, limit: Annotated[int, Field(ge=0)]) -> TaskList:
        """The first `limit` tasks of a split."""
        made = [_problem(task, problems.default_seed(task)) for task in problems.task_names(split)[:limit]]
        return TaskList(
            tasks=[TaskItem(task=p.task, seed=p.seed, prompt=p.prompt, difficulty=p.difficulty) for p in made]
        )

    @harness_tool(server, "reset")
    async def reset(task: str, seed: int, ctx: Context) -> Done:
        """Begin a task: nothing answered, nothing calculated."""
        state.reset(ctx, Attempts(problem=_problem(task, seed), most=attempts))
        return Done()

    @harness_tool(server, "score")
    async def score(messages: list[Message], ctx: Context) -> Score:
        """Score the answers that the user heard and the results that the calculator gave. No message is read."""
        return state.of(ctx).score()

    @harness_tool(server, "release")
    async def release(ctx: Context) -> Done:
        """End the trajectory."""
        state.drop(ctx)
        return Done()

    @harness_tool(server, "expert")
    async def expert(task: str, seed: int) -> Expert:
        """The scripted expert's turns for a task."""
        return scripted_expert(_problem(task, seed))


def _problem(task: str, seed: int) -> Problem:
    try:
        return problems.problem(task, seed)
    except LookupError as error:
        raise ToolError(str(error)) from error
