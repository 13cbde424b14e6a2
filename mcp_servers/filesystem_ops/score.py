"""The score: what became of the tree, against what was to become of it."""

from __future__ import annotations

from mcp_servers.filesystem_ops.tasks import Assignment
from mcp_servers.filesystem_ops.tree import Tree, same
from mcp_servers.kit.answers import Score

LEAST_DUE = 2
"""What a wrong path weighs at most is one of so many, so that one slip does not void the smallest job."""


def score(assignment: Assignment, now: Tree) -> Score:
    """``done * intact``, each 0 to 1.

    `done`: of the paths at which the goal differs from the beginning, the share that is as the goal has it; a file that
    is moved counts twice, since it has to be gone here and there there. `intact`: 1, less for each other path that is
    not as it was at the beginning (added ones included); with as many of them as were to be changed it is 0. So who
    does to all files what was to be done to some has decided nothing, and earns nothing.
    """
    before, goal = assignment.before, assignment.goal
    due = {path for path in before | goal if before.get(path) != goal.get(path)}
    wrong = sum(not same(now.get(path), before.get(path)) for path in (before.keys() | now.keys()) - due)
    done = sum(same(now.get(path), goal.get(path)) for path in due) / len(due)
    intact = max(0.0, 1 - wrong / max(len(due), LEAST_DUE))
    return Score(score=done * intact, parts={"done": done, "intact": intact})
