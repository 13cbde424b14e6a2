"""What the rollout asks of the shop: tasks, reset, score, release, expert."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Literal

from mcp.server.mcpserver import MCPServer

from mcp_servers.kit import Expert, Harness, Message, Score, Split, TaskItem, ToolError
from mcp_servers.retail import tasks as retail_tasks
from mcp_servers.retail.case import Case
from mcp_servers.retail.counter import CounterSlice, counter_task_names
from mcp_servers.retail.desk import Desk
from mcp_servers.retail.expert import expert as scripted_expert
from mcp_servers.retail.generate import make_world
from mcp_servers.retail.score import score as scored


def add_harness(server: MCPServer, slice_: Literal["all"] | CounterSlice, max_trajectories: int) -> Harness[Desk]:
    """Without `reset`, a trajectory gets a shop of its seed in which nobody has a task."""
    harness = Harness(
        server,
        _begin,
        without_reset=lambda seed: Desk(world=make_world(Random(seed))),
        max_trajectories=max_trajectories,
    )

    @harness.tasks
    def tasks(split: Split) -> Iterator[TaskItem]:
        for task in retail_tasks.task_names(split) if slice_ == "all" else counter_task_names(slice_, split):
            case = retail_tasks.make_case(task, retail_tasks.default_seed(task))
            yield TaskItem(task=task, seed=case.seed, prompt=case.opening, difficulty=case.difficulty)

    @harness.score
    def score(desk: Desk, messages: list[Message]) -> Score:
        """Score the trajectory: the database as it is now, and what the messages told the customer."""
        return scored(_case(desk), desk, messages)

    @harness.expert
    def expert(desk: Desk) -> Expert:
        """The scripted expert's turns for a task."""
        return scripted_expert(_case(desk))

    return harness


def _begin(task: str, seed: int) -> Desk:
    case = retail_tasks.make_case(task, seed)
    desk = Desk(world=case.world, task=task, seed=seed)
    if case.express:
        desk.identify(case.customer)
    return desk


def _case(desk: Desk) -> Case:
    """The world as it was is made again instead of being held in memory beside each trajectory's own."""
    if desk.task is None:
        raise ToolError("no task to score: call reset first")
    return retail_tasks.make_case(desk.task, desk.seed)
