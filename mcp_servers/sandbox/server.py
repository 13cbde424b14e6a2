"""The problems as an MCP server; `run_python` and `submit` are the policy's tools."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from mcp.server.mcpserver import Context, MCPServer
from pydantic import Field

from mcp_servers._jail.child import Limits
from mcp_servers.kit import READ, SET, Harness, Message, Score, parser, serve
from mcp_servers.sandbox.judge import Runner, report, shown
from mcp_servers.sandbox.problems import TASKS, Problem, expert, problem

INSTRUCTIONS = """\
You write Python functions. Try your code with run_python, then hand it in with submit, which runs the examples. The
last submission counts: it is tested on inputs that you do not see. Code runs by itself with Python's standard library:
no network, no other processes or threads, no files but those it makes, a few seconds. Nothing is kept between runs.
When you are done, say so."""

Code = Annotated[str, Field(max_length=20_000, description="Python source")]


@dataclass(slots=True)
class Attempt:
    """The world of one trajectory."""

    problem: Problem
    submitted: str | None = None
    """The last submission."""


def create_server(*, parallel: int = 4, limits: Limits | None = None) -> MCPServer:
    """Creates the server.

    Args:
        parallel: Maximum number of runs at a time; others wait.
        limits: Limits of each run.
    """
    server = MCPServer("sandbox", instructions=INSTRUCTIONS, log_level="WARNING")
    harness = Harness(server, lambda task, seed: Attempt(problem(task, seed)))
    runner = Runner(parallel, limits or Limits())
    _add_policy_tools(server, harness, runner)
    harness.placing(lambda _: runner.check_isolation())
    harness.tasks(lambda split: TASKS.items(split, problem))
    harness.start(lambda attempt: attempt.problem.prompt)
    harness.expert(lambda attempt: expert(attempt.problem))

    @harness.score
    async def score(attempt: Attempt, messages: list[Message]) -> Score:
        """The share of the hidden tests that the last submission passes. No message is read."""
        if attempt.submitted is None:
            return Score(score=0.0, parts={"tests": 0.0, "examples": 0.0})
        problem = attempt.problem
        verdict = await runner.judge(attempt.submitted, [*problem.examples, *problem.hidden])
        count = len(problem.examples)
        examples, tests = sum(verdict.passed[:count]) / count, sum(verdict.passed[count:]) / len(problem.hidden)
        return Score(score=tests, parts={"tests": tests, "examples": examples})

    del score  # registered
    return server


def _add_policy_tools(server: MCPServer, harness: Harness[Attempt], runner: Runner) -> None:
    @server.tool(annotations=READ)
    async def run_python(code: Code, ctx: Context) -> str:
        """Run a program in a fresh process and read what it prints."""
        harness.world(ctx)  # refuses the request of a trajectory without a world
        return shown(await runner.run(code))

    @server.tool(annotations=SET)
    async def submit(code: Code, ctx: Context) -> str:
        """Hand in the function, in place of an earlier one; the examples are run on it."""
        attempt = harness.world(ctx)
        attempt.submitted = code
        return report(await runner.judge(code, attempt.problem.examples), attempt.problem.examples)


def main() -> None:
    arguments = parser("mcp_servers.sandbox", "Programming problems; code runs isolated. Linux only.")
    arguments.add_argument(
        "--parallel",
        type=int,
        choices=range(1, 257),
        default=4,
        metavar="1..256",
        help="runs at a time, each on one core and with 256 MB of its own at most; others wait (default: %(default)s)",
    )
    given = arguments.parse_args()
    serve(create_server(parallel=given.parallel), given.http)
