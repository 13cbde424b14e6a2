"""The calculator as an MCP server. Its policy tools are stateless; only the score needs the trajectory's problem."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Annotated

from mcp.server.mcpserver import MCPServer
from pydantic import Field

from mcp_rollout.mcp_servers.calculator import arithmetic
from mcp_rollout.mcp_servers.calculator.arithmetic import answer_in
from mcp_rollout.mcp_servers.calculator.stories import Family, Question, Step, StoryProblem, make_problem, questions
from mcp_rollout.mcp_servers.kit import (
    READ,
    Call,
    Expert,
    ExpertTurn,
    Harness,
    Message,
    Score,
    Split,
    Splits,
    ToolError,
    texts_for_user,
)
from mcp_rollout.mcp_servers.kit.records import Difficulty

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


TASKS = Splits("calculator", {"train": 200, "test": 100})

_DIFFICULTIES: tuple[Difficulty, ...] = ("hard", "easy", "medium", "easy", "medium")
"""The difficulties of consecutive tasks, in a cycle."""
_TOOLS = {"+": "add", "-": "subtract", "*": "multiply", "/": "divide"}


def problem(task: str, seed: int) -> StoryProblem:
    """The problem of this task and seed, the same in every process. Difficulty goes by the stages: 1, 2 or 3.

    Raises:
        LookupError: There is no such task.
    """
    ending = "End your answer with a line of the form 'Answer: N'."
    return make_problem(task, seed, TASKS, _DIFFICULTIES, _questions, ending=ending)


@cache
def _questions(split: Split, difficulty: Difficulty) -> list[tuple[Family, Question]]:
    stages = {"easy": 1, "medium": 2, "hard": 3}[difficulty]
    return [(family, asked) for family, asked in questions(split) if len(asked.steps) == stages]


def expert(problem: StoryProblem) -> Expert:
    turns: list[ExpertTurn] = []
    for stage in problem.story.stages:
        what = " and ".join(step.what for step in stage)
        turns.append(ExpertTurn(thinking=f"I need this first: {what}.", calls=[call(step) for step in stage]))
    told = f"I worked it out step by step.\nAnswer: {problem.answer}"
    return Expert(turns=[*turns, ExpertTurn(thinking="That is the last step.", content=told)])


def call(step: Step) -> Call:
    a, sign, b = step.expression.split()
    return Call(name=_TOOLS[sign], arguments={"a": int(a), "b": int(b)})


def score(problem: StoryProblem, messages: Sequence[Message]) -> Score:
    """1.0 for the right number in the last message's line `Answer: N`, 0.1 for a wrong one.

    Two different answers count as none.
    """
    texts = texts_for_user(messages)
    given = answer_in(texts[-1]) if texts else None
    form, answer = given is not None, given == problem.answer
    return Score(score=0.9 * answer + 0.1 * form, parts={"answer": float(answer), "form": float(form)})
