"""The verifier as an MCP server: harness tools alone. The policy's are a filesystem server's in the same place."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mcp.server.mcpserver import MCPServer

from mcp_servers.filesystem_ops import tasks as assignments
from mcp_servers.filesystem_ops.expert import expert as scripted_expert
from mcp_servers.filesystem_ops.score import score as scored
from mcp_servers.filesystem_ops.tasks import Assignment
from mcp_servers.filesystem_ops.tree import Tree, clear, lay_out, look
from mcp_servers.kit import Expert, Harness, Message, Score, Split, TaskItem, ToolError

INSTRUCTIONS = """\
You keep the files of an office in order. Paths are relative to its directory, as in reports/report-100.txt; the
directory itself is '.'. Do what the user asks for and change nothing else. When it is done, say so."""


@dataclass(slots=True)
class Work:
    """One trajectory."""

    assignment: Assignment
    laid_out: bool = False
    """Whether the directory holds its tree; worlds that the expert only looks at have none."""


class Place:
    """The directory. What is removed there is only what came after a first look that found it empty."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._ours = False

    def lay_out(self, tree: Tree) -> None:
        """Raises ToolError: there is something in it that was there before us."""
        if not self._ours and os.listdir(self.directory):
            raise ToolError(f"{self.directory} is not empty, and a reset removes what is there: give it one of its own")
        self._ours = True
        lay_out(self.directory, tree)

    def clear(self) -> None:
        clear(self.directory)


def create_server(directory: Path) -> MCPServer:
    """The server for one directory, and so for one trajectory at a time: leased with scope `process`.

    Args:
        directory: Where trees are laid out. It has to be empty before the first.
    """
    server = MCPServer("filesystem_ops", instructions=INSTRUCTIONS, log_level="WARNING")
    harness = Harness(server, lambda task, seed: Work(assignments.make_assignment(task, seed)), max_trajectories=1)
    _add_world(harness, Place(directory))
    _add_tasks(harness)
    return server


def _add_world(harness: Harness[Work], place: Place) -> None:
    @harness.placing
    def lay_out(work: Work) -> None:
        place.lay_out(work.assignment.before)
        work.laid_out = True

    @harness.closing
    def clear(work: Work) -> None:
        if work.laid_out:
            place.clear()

    @harness.start
    def start(work: Work) -> str:
        """What the user asks for."""
        return work.assignment.prompt

    @harness.score
    def score(work: Work, messages: list[Message]) -> Score:
        """Score the directory as it is now. No message is read."""
        return scored(work.assignment, look(place.directory))


def _add_tasks(harness: Harness[Work]) -> None:
    @harness.tasks
    def tasks(split: Split) -> Iterator[TaskItem]:
        """The first `limit` tasks of a split."""
        for task in assignments.TASKS.names(split):
            made = assignments.make_assignment(task, assignments.TASKS.seed(task))
            yield TaskItem(task=task, seed=made.seed, prompt=made.prompt, difficulty=made.difficulty)

    @harness.expert
    def expert(work: Work) -> Expert:
        """The scripted expert's turns for a task."""
        return scripted_expert(work.assignment)
