"""The problems as an MCP server: run and submit are the policy's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from mcp.server.mcpserver import Context, MCPServer
from pydantic import Field

from mcp_servers._jail.limits import Limits
from mcp_servers.kit import READ, SET, Expert, Harness, Message, Score, Split, TaskItem
from mcp_servers.sandbox import problems
from mcp_servers.sandbox.expert import expert as scripted_expert
from mcp_servers.sandbox.judge import report
from mcp_servers.sandbox.workbench import Bench, Workbench, shown

INSTRUCTIONS = """\
You write Python functions. Try your code with run_python, then hand it in with submit, which runs the examples. The
last submission counts: it is tested on inputs that you do not see. Code runs by itself with Python's standard library:
no network, no other processes or threads, no files but those it makes, a few seconds. Nothing is kept between runs.
When you are done, say so."""

Code = Annotated[str, Field(max_length=20_000, description="Python source")]


def create_server(*, parallel: int = 4, limits: Limits | None = None) -> MCPServer:
    """The server.

    Args:
        parallel: How many runs there may be at a time; others wait.
        limits: What each run may use.
    """
    server = MCPServer("sandbox", instructions=INSTRUCTIONS, log_level="WARNING")
    harness = Harness(server, lambda task, seed: Bench(problems.problem(task, seed)))
    workbench = Workbench(parallel, limits or Limits())
    _add_policy_tools(server, harness, workbench)
    _add_harness_tools(harness, workbench)
    return server


def _add_policy_tools(server: MCPServer, harness: Harness[Bench], workbench: Workbench) -> None:
    @server.tool(annotations=READ)
    async def run_python(code: Code, ctx: Context) -> str:
        """Run a program in a fresh process and read what it prints."""
        harness.world(ctx)  # there is one
        return shown(await workbench.run(code))

    @server.tool(annotations=SET)
    async def submit(code: Code, ctx: Context) -> str:
        """Hand in the function, in place of an earlier one; the examples are run on it."""
        bench = harness.world(ctx)
        bench.submitted = code
        return report(await workbench.judge(code, bench.problem.examples), bench.problem.examples)


def _add_harness_tools(harness: Harness[Bench], workbench: Workbench) -> None:
    @harness.placing
    async def place(bench: Bench) -> None:
        """Refused on a machine that does not isolate code."""
        await workbench.prove()

    @harness.tasks
    def tasks(split: Split) -> Iterator[TaskItem]:
        """The first `limit` tasks of a split."""
        for task in problems.TASKS.names(split):
            made = problems.problem(task, problems.TASKS.seed(task))
            yield TaskItem(task=task, seed=made.seed, prompt=made.prompt, difficulty=made.difficulty)

    @harness.start
    def start(bench: Bench) -> str:
        """The problem's statement."""
        return bench.problem.prompt

    @harness.score
    async def score(bench: Bench, messages: list[Message]) -> Score:
        """The share of the hidden tests that the last submission passes. No message is read."""
        if bench.submitted is None:
            return Score(score=0.0, parts={"tests": 0.0, "examples": 0.0})
        both = await workbench.judge(bench.submitted, [*bench.problem.examples, *bench.problem.hidden])
        count = len(bench.problem.examples)
        examples, hidden = both.passed[:count], both.passed[count:]
        tests = sum(hidden) / len(hidden)
        return Score(score=tests, parts={"tests": tests, "examples": sum(examples) / count})

    @harness.expert
    def expert(bench: Bench) -> Expert:
        """The scripted expert's turns for a task."""
        return scripted_expert(bench.problem)
