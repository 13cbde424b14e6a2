"""The problems as an MCP server; `run_python` and `submit` are the policy's tools."""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass, field
from random import Random
from typing import Annotated

import anyio
from mcp.server.mcpserver import Context, MCPServer
from pydantic import Field

from mcp_rollout.mcp_servers import kit
from mcp_rollout.mcp_servers._jail.child import Limits
from mcp_rollout.mcp_servers.kit import (
    READ,
    SET,
    Call,
    Expert,
    ExpertTurn,
    Harness,
    Message,
    Score,
    Split,
    Splits,
    parser,
    serve,
)
from mcp_rollout.mcp_servers.sandbox.families import FAMILIES
from mcp_rollout.mcp_servers.sandbox.judge import Busy, Runner, report, run_report
from mcp_rollout.mcp_servers.sandbox.steps import EXAMPLES, FUNCTION, MIDDLE_STEPS, Check, make

INSTRUCTIONS = """\
You write Python functions. Try your code with run_python, then hand it in with submit, which runs the examples. The
last submission counts: it is tested on inputs that you do not see. Code runs by itself with Python's standard library:
no network, no other processes or threads, no files but those it makes, a few seconds. Nothing is kept between runs.
When you are done, say so."""

PER_CORE = 4
"""Default number of runs at a time for each core: that many programs that compute stay within `Limits.wall_s`."""
WAIT_S = 120.0

Code = Annotated[str, Field(max_length=20_000, description="Python source")]


@dataclass(slots=True)
class Attempt:
    """The world of one trajectory."""

    problem: Problem
    running: anyio.Lock = field(default_factory=anyio.Lock)
    submissions: int = 0
    judged: int = 0
    """Number of the submission that `examples` and `hidden` belong to; 0 for none."""
    examples: list[bool] = field(default_factory=list[bool])
    """For each example, whether it passed."""
    hidden: list[bool] = field(default_factory=list[bool])


def create_server(*, parallel: int | None = None, wait_s: float = WAIT_S, limits: Limits | None = None) -> MCPServer:
    """Creates the server.

    Args:
        parallel: Maximum number of runs at a time; others wait. None for `PER_CORE` for each core.
        wait_s: Maximum wait for a run, after which the policy reads that it can try again.
        limits: Limits of each run.
    """
    server = MCPServer("sandbox", instructions=INSTRUCTIONS, log_level="WARNING")
    harness = Harness(server, lambda task, seed: Attempt(problem(task, seed)))
    runner = Runner(parallel or PER_CORE * (os.cpu_count() or 1), wait_s, limits or Limits())
    _add_policy_tools(server, harness, runner)
    harness.placing(lambda _: runner.check_isolation())
    harness.tasks(lambda split: TASKS.items(split, problem))
    harness.start(lambda attempt: attempt.problem.prompt)
    harness.expert(lambda attempt: expert(attempt.problem))

    @harness.score
    async def score(attempt: Attempt, messages: list[Message]) -> Score:
        """The share of the hidden tests that the last submission passes. No message is read, and no code is run."""
        tests, examples = (sum(passed) / max(1, len(passed)) for passed in (attempt.hidden, attempt.examples))
        return Score(score=tests, parts={"tests": tests, "examples": examples})

    del score  # registered
    return server


def _add_policy_tools(server: MCPServer, harness: Harness[Attempt], runner: Runner) -> None:
    @server.tool(annotations=READ)
    async def run_python(code: Code, ctx: Context) -> str:
        """Run a program in a fresh process and read what it prints."""
        attempt = harness.world(ctx)
        try:
            return run_report(await runner.run(code, attempt.running))
        except Busy as busy:
            return str(busy)

    @server.tool(annotations=SET)
    async def submit(code: Code, ctx: Context) -> str:
        """Hand in the function, in place of an earlier one; the examples are run on it."""
        attempt, problem = harness.world(ctx), harness.world(ctx).problem
        attempt.submissions += 1
        number = attempt.submissions
        # The hidden tests run here and not in the score, which so never waits for other trajectories' programs.
        try:
            examples, hidden = await runner.judge(code, [problem.examples, problem.hidden], attempt.running)
        except Busy as busy:
            return f"{busy} The function is not handed in; an earlier one still counts."
        if number > attempt.judged:  # calls made at the same time may end in another order
            attempt.judged, attempt.examples, attempt.hidden = number, examples.passed, hidden.passed
        return report(examples, problem.examples)


def main() -> None:
    arguments = parser("mcp_rollout.mcp_servers.sandbox", "Programming problems; code runs isolated. Linux only.")
    arguments.add_argument(
        "--parallel",
        type=int,
        choices=range(1, 257),
        metavar="1..256",
        help=f"runs at a time, each with 256 MB of its own at most; others wait (default: {PER_CORE} for each core)",
    )
    arguments.add_argument(
        "--wait-s",
        type=float,
        default=WAIT_S,
        help="wait for a run, after which the policy reads that it can try again (default: %(default)s)",
    )
    given = arguments.parse_args()
    serve(create_server(parallel=given.parallel, wait_s=given.wait_s), given.http)


TASKS = Splits("sandbox", {"train": 400, "test": 100})


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem(kit.Problem):
    examples: tuple[Check, ...]
    hidden: tuple[Check, ...]
    solution: str


def problem(task: str, seed: int) -> Problem:
    """The problem of this task and seed, the same in every process.

    Raises:
        LookupError: There is no such task.
    """
    split, index = TASKS.parse(task)
    rng = Random(f"{task}/{seed}")
    family, difficulty = FAMILIES[index % len(FAMILIES)], tuple(MIDDLE_STEPS)[index % len(MIDDLE_STEPS)]
    while True:
        made = make(rng, family, difficulty)
        tests = made.tests(rng, family.draw) if _belongs(made.statement) == split else None
        if tests is not None:
            break
    examples = tests[:EXAMPLES]
    shown = "\n".join(f"{FUNCTION}({test.argument!r}) == {test.expected!r}" for test in examples)
    return Problem(
        task=task,
        seed=seed,
        prompt=f"{made.statement}\n\nExamples:\n{shown}",
        difficulty=difficulty,
        examples=tuple(examples),
        hidden=tuple(tests[EXAMPLES:]),
        solution=made.solution,
    )


def _belongs(statement: str) -> Split:
    """The split of a statement, independent of task and seed, so that the splits share no problem."""
    return "test" if zlib.crc32(statement.encode()) % 5 == 0 else "train"


def expert(problem: Problem) -> Expert:
    """Runs the solution on an example, submits it, and reports."""
    example = problem.examples[0]
    tried = f"{problem.solution}\nprint({FUNCTION}({example.argument!r}))\n"
    return Expert(
        turns=[
            ExpertTurn(
                thinking="One line for each step. I try it on the first example.",
                calls=[Call(name="run_python", arguments={"code": tried})],
            ),
            ExpertTurn(
                thinking=f"The example gives {example.expected!r}, as it should.",
                calls=[Call(name="submit", arguments={"code": problem.solution})],
            ),
            ExpertTurn(thinking="All examples passed.", content="The function is submitted."),
        ]
    )
