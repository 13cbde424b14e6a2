"""The calculator as an MCP server. Its policy tools keep no state; the task at hand is kept for the score alone."""

from __future__ import annotations

from typing import Annotated

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from mcp_servers._harness import READ, Done, Expert, Opening, Score, Split, TaskItem, TaskList, harness_tool
from mcp_servers._messages import Message
from mcp_servers._state import TrajectoryState
from mcp_servers.calculator import arithmetic, problems
from mcp_servers.calculator.expert import expert as scripted_expert
from mcp_servers.calculator.expert import score as scored
from mcp_servers.calculator.problems import Problem

INSTRUCTIONS = """\
You solve word problems. Do the arithmetic with the tools, never in your head; calls that do not need each other's
results may be made together. When you have the result, say so and end with one line of exactly this form:
Answer: N"""

Operand = Annotated[float, Field(allow_inf_nan=False, ge=-1e15, le=1e15)]
Expression = Annotated[
    str,
    Field(
        description="Numbers, parentheses and + - * / // % **, for example (3 + 4) * 12",
        max_length=arithmetic.MAX_CHARACTERS,
    ),
]


def create_server() -> MCPServer:
    server = MCPServer("calculator", instructions=INSTRUCTIONS, log_level="WARNING")
    _add_policy_tools(server)
    _add_harness_tools(server, TrajectoryState[Problem]())
    return server


def _add_policy_tools(server: MCPServer) -> None:
    @server.tool(annotations=READ)
    async def add(a: Operand, b: Operand) -> int | float:
        """Add two numbers."""
        return _tidy(a + b)

    @server.tool(annotations=READ)
    async def subtract(a: Operand, b: Operand) -> int | float:
        """Subtract b from a."""
        return _tidy(a - b)

    @server.tool(annotations=READ)
    async def multiply(a: Operand, b: Operand) -> int | float:
        """Multiply two numbers."""
        return _tidy(a * b)

    @server.tool(annotations=READ)
    async def divide(a: Operand, b: Operand) -> int | float:
        """Divide a by b."""
        if b == 0:
            raise ToolError("division by zero")
        return _tidy(a / b)

    @server.tool(annotations=READ)
    async def evaluate(expression: Expression) -> int | float:
        """Evaluate an arithmetic expression."""
        try:
            return arithmetic.evaluate(expression)
        except arithmetic.ArithmeticRefused as error:
            raise ToolError(str(error)) from error


def _add_harness_tools(server: MCPServer, state: TrajectoryState[Problem]) -> None:
    @harness_tool(server, "reset")
    async def reset(task: str, seed: int, ctx: Context) -> Done:
        """Begin a task."""
        state.reset(ctx, _problem(task, seed))
        return Done()

    @harness_tool(server, "start")
    async def start(ctx: Context) -> Opening:
        """The task's opening message."""
        return Opening(message=state.of(ctx).prompt)

    @harness_tool(server, "score")
    async def score(messages: list[Message], ctx: Context) -> Score:
        """Score the trajectory's messages."""
        return scored(state.of(ctx), messages)

    @harness_tool(server, "release")
    async def release(ctx: Context) -> Done:
        """End the trajectory."""
        state.drop(ctx)
        return Done()

    @harness_tool(server, "tasks")
    async def tasks(split: Split, limit: Annotated[int, Field(ge=0)]) -> TaskList:
        """The first `limit` tasks of a split."""
        made = [_problem(task, problems.default_seed(task)) for task in problems.task_names(split)[:limit]]
        return TaskList(
            tasks=[TaskItem(task=p.task, seed=p.seed, prompt=p.prompt, difficulty=p.difficulty) for p in made]
        )

    @harness_tool(server, "expert")
    async def expert(task: str, seed: int) -> Expert:
        """The scripted expert's turns for a task."""
        return scripted_expert(_problem(task, seed))


def _problem(task: str, seed: int) -> Problem:
    try:
        return problems.problem(task, seed)
    except LookupError as error:
        raise ToolError(str(error)) from error


def _tidy(value: float) -> int | float:
    try:
        return arithmetic.tidy(value)
    except arithmetic.ArithmeticRefused as error:
        raise ToolError(str(error)) from error
