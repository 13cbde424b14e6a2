"""The problems as an MCP server: run and submit are the policy's."""

from __future__ import annotations

from typing import Annotated

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from mcp_servers._jail.limits import Limits
from mcp_servers.kit.answers import Done, Expert, Opening, Score, Split, TaskItem, TaskList
from mcp_servers.kit.messages import Message
from mcp_servers.kit.roles import READ, SET, harness_tool
from mcp_servers.kit.state import TrajectoryState
from mcp_servers.sandbox import problems
from mcp_servers.sandbox.expert import expert as scripted_expert
from mcp_servers.sandbox.judge import report
from mcp_servers.sandbox.problems import Problem
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
    state = TrajectoryState[Bench]()
    workbench = Workbench(parallel, limits or Limits())
    _add_policy_tools(server, state, workbench)
    _add_harness_tools(server, state, workbench)
    return server


def _add_policy_tools(server: MCPServer, state: TrajectoryState[Bench], workbench: Workbench) -> None:
    @server.tool(annotations=READ)
    async def run_python(code: Code, ctx: Context) -> str:
        """Run a program in a fresh process and read what it prints."""
        state.of(ctx)
        return shown(await workbench.run(code))

    @server.tool(annotations=SET)
    async def submit(code: Code, ctx: Context) -> str:
        """Hand in the function, in place of an earlier one; the examples are run on it."""
        bench = state.of(ctx)
        bench.submitted = code
        return report(await workbench.judge(code, bench.problem.examples), bench.problem.examples)


def _add_harness_tools(server: MCPServer, state: TrajectoryState[Bench], workbench: Workbench) -> None:
    @harness_tool(server, "tasks")
    async def tasks(split: Split, limit: Annotated[int, Field(ge=0)]) -> TaskList:
        """The first `limit` tasks of a split."""
        made = [_problem(task, problems.default_seed(task)) for task in problems.task_names(split)[:limit]]
        return TaskList(
            tasks=[TaskItem(task=p.task, seed=p.seed, prompt=p.prompt, difficulty=p.difficulty) for p in made]
        )

    @harness_tool(server, "reset")
    async def reset(task: str, seed: int, ctx: Context) -> Done:
        """Begin a task: nothing submitted. Refused on a machine that does not isolate code."""
        made = _problem(task, seed)
        await workbench.prove()
        state.reset(ctx, Bench(made))
        return Done()

    @harness_tool(server, "start")
    async def start(ctx: Context) -> Opening:
        """The problem's statement."""
        return Opening(message=state.of(ctx).problem.prompt)

    @harness_tool(server, "score")
    async def score(messages: list[Message], ctx: Context) -> Score:
        """The share of the hidden tests that the last submission passes. No message is read."""
        bench = state.of(ctx)
        if bench.submitted is None:
            return Score(score=0.0, parts={"tests": 0.0, "examples": 0.0})
        both = await workbench.judge(bench.submitted, [*bench.problem.examples, *bench.problem.hidden])
        count = len(bench.problem.examples)
        examples, hidden = both.passed[:count], both.passed[count:]
        tests = sum(hidden) / len(hidden)
        return Score(score=tests, parts={"tests": tests, "examples": sum(examples) / count})

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
