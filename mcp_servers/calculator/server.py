"""The calculator as an MCP server. Its policy tools keep no state; the task at hand is kept for the score alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from mcp.server.mcpserver import MCPServer
from pydantic import Field

from mcp_servers.calculator import arithmetic, problems
from mcp_servers.calculator.expert import expert as scripted_expert
from mcp_servers.calculator.expert import score as scored
from mcp_servers.calculator.problems import Problem
from mcp_servers.kit import READ, Harness, Split, TaskItem, ToolError

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
    _add_harness_tools(Harness(server, problems.problem))
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


def _add_harness_tools(harness: Harness[Problem]) -> None:
    harness.start(lambda problem: problem.prompt)
    harness.score(scored)
    harness.expert(scripted_expert)

    @harness.tasks
    def tasks(split: Split) -> Iterator[TaskItem]:
        for task in problems.TASKS.names(split):
            made = problems.problem(task, problems.TASKS.seed(task))
            yield TaskItem(task=made.task, seed=made.seed, prompt=made.prompt, difficulty=made.difficulty)


def _tidy(value: float) -> int | float:
    try:
        return arithmetic.tidy(value)
    except arithmetic.ArithmeticRefused as error:
        raise ToolError(str(error)) from error
