"""The verifier as an MCP server with harness tools alone.

The policy's tools are those of a filesystem server that works in the same directory.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from mcp.server.mcpserver import MCPServer

from mcp_rollout.mcp_servers.filesystem_ops import tree
from mcp_rollout.mcp_servers.filesystem_ops.tasks import TASKS, Assignment, expert, make_assignment, score
from mcp_rollout.mcp_servers.kit import Harness, ToolError, parser, serve

INSTRUCTIONS = """\
You keep the files of an office in order. Paths are relative to its directory, as in reports/report-100.txt; the
directory itself is '.'. Do what the user asks for and change nothing else. When it is done, say so."""


@dataclass(slots=True)
class Work:
    """The world of one trajectory."""

    assignment: Assignment
    placed: bool = False
    """Whether the directory holds its tree; the worlds that `expert` reads are never placed."""


def create_server(directory: Path) -> MCPServer:
    """Creates the server for one directory, and so for one trajectory at a time: lease it with scope `process`.

    Args:
        directory: Where trees are written. It must be empty before the first reset, because resets remove its files.
    """
    server = MCPServer("filesystem_ops", instructions=INSTRUCTIONS, log_level="WARNING")
    harness = Harness(server, lambda task, seed: Work(make_assignment(task, seed)), max_trajectories=1)
    harness.tasks(lambda split: TASKS.items(split, make_assignment))
    harness.start(lambda work: work.assignment.prompt)
    harness.score(lambda work, _: score(work.assignment, tree.read(directory)))
    harness.expert(lambda work: expert(work.assignment))
    found_empty = False

    @harness.placing
    def place(work: Work) -> None:
        nonlocal found_empty
        if not found_empty and os.listdir(directory):
            raise ToolError(f"{directory} is not empty, and a reset removes what is there: give it one of its own")
        found_empty = True
        tree.lay_out(directory, work.assignment.before)
        work.placed = True

    @harness.closing
    def clear(work: Work) -> None:
        if work.placed:
            tree.clear(directory)

    del place, clear  # registered
    return server


def main() -> None:
    arguments = parser(
        "mcp_rollout.mcp_servers.filesystem_ops", "Lays out a tree of files for each task and scores the result."
    )
    arguments.add_argument(
        "--directory",
        type=Path,
        required=True,
        metavar="DIR",
        help="an empty directory that the filesystem server works in too, such as ${lease.dir}; resets overwrite it",
    )
    given = arguments.parse_args()
    if not given.directory.is_dir():
        arguments.error(f"--directory {given.directory} is not a directory")
    serve(create_server(given.directory), given.http)
