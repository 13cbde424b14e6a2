"""The tools that the rollout calls: tasks, reset, score, release, expert."""

from __future__ import annotations

from typing import Annotated, Literal

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from mcp_servers._harness import Done, Expert, Score, Split, TaskItem, TaskList, harness_tool
from mcp_servers._messages import Message
from mcp_servers._state import TrajectoryState
from mcp_servers.retail import tasks as retail_tasks
from mcp_servers.retail.case import Case
from mcp_servers.retail.counter import CounterSlice, counter_task_names
from mcp_servers.retail.desk import Desk
from mcp_servers.retail.expert import expert as scripted_expert
from mcp_servers.retail.score import score as scored


def add_harness_tools(
    server: MCPServer, state: TrajectoryState[Desk], slice_: Literal["all"] | CounterSlice = "all"
) -> None:
    @harness_tool(server, "tasks")
    async def tasks(split: Split, limit: Annotated[int, Field(ge=0)]) -> TaskList:
        """The first `limit` tasks of a split."""
        names = retail_tasks.task_names(split) if slice_ == "all" else counter_task_names(slice_, split)
        return TaskList(tasks=[_item(task) for task in names[:limit]])

    @harness_tool(server, "reset")
    async def reset(task: str, seed: int, ctx: Context) -> Done:
        """A new database for the trajectory: the world of this task and seed."""
        case = _case(task, seed)
        desk = Desk(world=case.world, task=task, seed=seed)
        if case.express:
            desk.identify(case.customer)
        state.reset(ctx, desk)
        return Done()

    @harness_tool(server, "score")
    async def score(messages: list[Message], ctx: Context) -> Score:
        """Score the trajectory: the database as it is now, and what the messages told the customer."""
        desk = state.of(ctx)
        if desk.task is None:
            raise ToolError("no task to score: call reset first")
        # The world as it was is made again instead of being held in memory beside each trajectory's own.
        return scored(_case(desk.task, desk.seed), desk, messages)

    @harness_tool(server, "release")
    async def release(ctx: Context) -> Done:
        """The end of the trajectory: its database is dropped."""
        state.drop(ctx)
        return Done()

    @harness_tool(server, "expert")
    async def expert(task: str, seed: int) -> Expert:
        """The scripted expert's turns for a task."""
        return scripted_expert(_case(task, seed))


def _item(task: str) -> TaskItem:
    case = _case(task, retail_tasks.default_seed(task))
    return TaskItem(task=task, seed=case.seed, prompt=case.opening, difficulty=case.difficulty)


def _case(task: str, seed: int) -> Case:
    try:
        return retail_tasks.make_case(task, seed)
    except LookupError as error:
        raise ToolError(str(error)) from error
