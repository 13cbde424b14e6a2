"""The calculator as an MCP server. Its policy tools are stateless; only the score needs the trajectory's problem."""

from __future__ import annotations

from typing import Annotated

from mcp.server.mcpserver import MCPServer
from pydantic import Field

from mcp_servers.calculator import arithmetic
from mcp_servers.calculator.problems import TASKS, expert, problem, score
from mcp_servers.kit import READ, Harness, ToolError

INSTRUCTIONS = """\
You solve word problems. Do the arithmetic with the tools, never in your head; calls that do not need each other's
results may be made together. When you have the result, say so and end with one line of exactly this form:
Answer: N"""

Operand = Annotated[float, Field(allow_inf_nan=False, ge=-1e15, le=1e15)]


def create_server() -> MCPServer:
    server = MCPServer("calculator", instructions=INSTRUCTIONS, log_level="WARNING")
    _add_policy_tools(server)
    harness = Harness(server, problem, rehearsal=TASKS.first("test"))
    harness.tasks(lambda split: TASKS.items(split, problem))
    harness.start(lambda problem: problem.prompt)
    harness.score(score)
    harness.expert(expert)
    return server


def _add_policy_tools(server: MCPServer) -> None:
    @server.tool(annotations=READ)
    async def add(a: Operand, b: Operand) -> int | float:
        """Add two numbers."""
        return arithmetic.tidy(a + b)

    @server.tool(annotations=READ)
    async def subtract(a: Operand, b: Operand) -> int | float:
        """Subtract b from a."""
        return arithmetic.tidy(a - b)

    @server.tool(annotations=READ)
    async def multiply(a: Operand, b: Operand) -> int | float:
        """Multiply two numbers."""
        return arithmetic.tidy(a * b)

    @server.tool(annotations=READ)
    async def divide(a: Operand, b: Operand) -> int | float:
        """Divide a by b."""
        if b == 0:
            raise ToolError("division by zero")
        return arithmetic.tidy(a / b)

    @server.tool(annotations=READ)
    async def evaluate(expression: arithmetic.Expression) -> int | float:
        """Evaluate an arithmetic expression."""
        return arithmetic.evaluate(expression)
