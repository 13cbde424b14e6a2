"""The verifier as an MCP server: harness tools alone. The policy's are a filesystem server's in the same place."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from mcp_servers.filesystem_ops import tasks as assignments
from mcp_servers.filesystem_ops.expert import expert as scripted_expert
from mcp_servers.filesystem_ops.score import score as scored
from mcp_servers.filesystem_ops.tasks import Assignment
from mcp_servers.filesystem_ops.tree import Tree, clear, lay_out, look
from mcp_servers.kit.answers import Done, Expert, Opening, Score, Split, TaskItem, TaskList
from mcp_servers.kit.messages import Message
from mcp_servers.kit.roles import harness_tool
from mcp_servers.kit.state import TrajectoryState

INSTRUCTIONS = """\
You keep the files of an office in order. Paths are relative to its directory, as in reports/report-100.txt; the
directory itself is '.'. Do what the user asks for and change nothing else. When it is done, say so."""


class Place:
    """The directory. What is removed there is only what came after a first look that found it empty."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._ours = False

    def check(self) -> None:
        """Raises ToolError: there is something in it that was there before us."""
        if not self._ours and os.listdir(self.directory):
            raise ToolError(f"{self.directory} is not empty, and a reset removes what is there: give it one of its own")

    def lay_out(self, tree: Tree) -> None:
        self._ours = True
        lay_out(self.directory, tree)

    def clear(self) -> None:
        if self._ours:
            clear(self.directory)


def create_server(directory: Path) -> MCPServer:
    """The server for one directory, and so for one trajectory at a time: leased with scope `process`.

    Args:
        directory: Where trees are laid out. It has to be empty before the first.
    """
    server = MCPServer("filesystem_ops", instructions=INSTRUCTIONS, log_level="WARNING")
    state = TrajectoryState[Assignment](max_states=1)
    _add_world(server, state, directory)
    _add_tasks(server)
    return server


def _add_world(server: MCPServer, state: TrajectoryState[Assignment], directory: Path) -> None:
    place = Place(directory)

    @harness_tool(server, "reset")
    async def reset(task: str, seed: int, ctx: Context) -> Done:
        """Lay out the task's tree, in place of an earlier one of ours."""
        place.check()
        place.lay_out(state.reset(ctx, _assignment(task, seed)).before)
        return Done()

    @harness_tool(server, "start")
    async def start(ctx: Context) -> Opening:
        """What the user asks for."""
        return Opening(message=state.of(ctx).prompt)

    @harness_tool(server, "score")
    async def score(messages: list[Message], ctx: Context) -> Score:
        """Score the directory as it is now. No message is read."""
        return scored(state.of(ctx), look(place.directory))

    @harness_tool(server, "release")
    async def release(ctx: Context) -> Done:
        """End the trajectory: the directory is emptied."""
        place.clear()
        state.drop(ctx)
        return Done()


def _add_tasks(server: MCPServer) -> None:
    @harness_tool(server, "tasks")
    async def tasks(split: Split, limit: Annotated[int, Field(ge=0)]) -> TaskList:
        """The first `limit` tasks of a split."""
        made = [_assignment(task, assignments.default_seed(task)) for task in assignments.task_names(split)[:limit]]
        return TaskList(
            tasks=[TaskItem(task=a.task, seed=a.seed, prompt=a.prompt, difficulty=a.difficulty) for a in made]
        )

    @harness_tool(server, "expert")
    async def expert(task: str, seed: int) -> Expert:
        """The scripted expert's turns for a task."""
        return scripted_expert(_assignment(task, seed))


def _assignment(task: str, seed: int) -> Assignment:
    try:
        return assignments.make_assignment(task, seed)
    except LookupError as error:
        raise ToolError(str(error)) from error
