"""The score: what became of the tree, against what was to become of it."""

from __future__ import annotations

from mcp_servers.filesystem_ops.tasks import Assignment
from mcp_servers.filesystem_ops.tree import Tree, same
from mcp_servers.kit.answers import Score


def score(assignment: Assignment, now: Tree) -> Score:
    """``done * intact``, each 0 to 1.

    `done`: of the paths at which the goal differs from the beginning, the share that is as the goal has it; a file that
    is moved counts twice, since it has to be gone here and there there. `intact`: of all other files, those that
    somebody added among them, the share that is as it was at the beginning.
    """
    before, goal = assignment.before, assignment.goal
    changed = {path for path in before | goal if before.get(path) != goal.get(path)}
    others = (before.keys() | now.keys()) - changed
    done = sum(same(now.get(path), goal.get(path)) for path in changed) / len(changed)
    intact = sum(same(now.get(path), before.get(path)) for path in others) / len(others) if others else 1.0
    return Score(score=done * intact, parts={"done": done, "intact": intact})
