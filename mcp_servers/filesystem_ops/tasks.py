"""The tasks: an office and one job in it, or several."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Literal

from mcp_servers.filesystem_ops.jobs import KINDS, Job
from mcp_servers.filesystem_ops.office import make_office
from mcp_servers.filesystem_ops.tree import Tree
from mcp_servers.kit.splits import Splits

TASKS = Splits("files", {"train": 200, "test": 60})


@dataclass(frozen=True, kw_only=True, slots=True)
class Assignment:
    task: str
    seed: int
    prompt: str
    jobs: tuple[Job, ...]
    before: Tree
    goal: Tree

    @property
    def difficulty(self) -> Literal["easy", "medium", "hard"]:
        """By the number of jobs: 1, 2 or 3."""
        return ("easy", "medium", "hard")[len(self.jobs) - 1]


def make_assignment(task: str, seed: int) -> Assignment:
    """The assignment of this task and seed, the same in every process.

    Raises:
        LookupError: There is no such task.
    """
    split, index = TASKS.parse(task)
    rng = Random(f"{task}/{seed}")
    office = make_office(rng)
    kinds = sorted(rng.sample(range(len(KINDS)), 1 + index % 3))
    jobs = tuple(KINDS[kind](rng, office) for kind in kinds)
    goal = dict(office.tree)
    for job in jobs:
        job.apply(goal)
    numbered = "\n".join(f"{number}. {job.words}" for number, job in enumerate(jobs, 1))
    asked = jobs[0].words if len(jobs) == 1 else f"Please do these things, and nothing else:\n{numbered}"
    # Odd numbers in training and even ones in tests: no prompt belongs to both, whatever the seed.
    number = 2 * rng.randint(50, 4999) + (split == "train")
    places = ", ".join(sorted(_places(office.tree)))
    opening = f"Office number {number} keeps its files in {places}."
    return Assignment(
        task=task,
        seed=seed,
        prompt=f"{opening} {asked}",
        jobs=jobs,
        before=office.tree,
        goal=goal,
    )


def _places(tree: Tree) -> set[str]:
    return {f"{path.partition('/')[0]}/" for path in tree if "/" in path}
