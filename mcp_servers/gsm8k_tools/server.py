"""The problems as an MCP server: the calculator is the policy's, the user and the score are the harness's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from mcp.server.mcpserver import Context, MCPServer
from pydantic import Field

from mcp_servers.calculator.arithmetic import MAX_CHARACTERS, ArithmeticRefused, evaluate
from mcp_servers.gsm8k_tools import problems
from mcp_servers.gsm8k_tools.attempts import MAX_ATTEMPTS, Attempts
from mcp_servers.gsm8k_tools.expert import expert as scripted_expert
from mcp_servers.gsm8k_tools.work import results_within
from mcp_servers.kit import READ, Expert, Harness, Message, Reply, Score, Split, TaskItem, ToolError

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
    harness = Harness(server, lambda task, seed: Attempts(problem=problems.problem(task, seed), most=attempts))
    _add_calculator(server, harness)
    _add_harness_tools(harness)
    return server


def _add_calculator(server: MCPServer, harness: Harness[Attempts]) -> None:
    # The results are kept as a set: the same call twice leaves what it left once.
    @server.tool(annotations=READ)
    async def calculate(expression: Expression, ctx: Context) -> int | float:
        """Calculate an arithmetic expression."""
        attempts = harness.world(ctx)
        try:
            attempts.calculated |= results_within(expression)
            return evaluate(expression)
        except ArithmeticRefused as error:
            raise ToolError(str(error)) from error


def _add_harness_tools(harness: Harness[Attempts]) -> None:
    @harness.start
    def start(attempts: Attempts) -> str:
        """The problem, as the user tells it; asking again gives the same."""
        return attempts.problem.prompt

    @harness.reply
    def reply(attempts: Attempts, message: str) -> Reply:
        """Whether the answer is right; a repeated number gives the same reply."""
        return attempts.reply(message)

    @harness.tasks
    def tasks(split: Split) -> Iterator[TaskItem]:
        """The first `limit` tasks of a split."""
        for task in problems.TASKS.names(split):
            made = problems.problem(task, problems.TASKS.seed(task))
            yield TaskItem(task=task, seed=made.seed, prompt=made.prompt, difficulty=made.difficulty)

    @harness.score
    def score(attempts: Attempts, messages: list[Message]) -> Score:
        """Score the answers that the user heard and the results that the calculator gave. No message is read."""
        return attempts.score()

    @harness.expert
    def expert(attempts: Attempts) -> Expert:
        """The scripted expert's turns for a task."""
        return scripted_expert(attempts.problem)
