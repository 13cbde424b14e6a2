"""The problems: each is determined by its task id and a seed."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Literal

from mcp_servers.gsm8k_tools.templates import TEMPLATES
from mcp_servers.gsm8k_tools.work import Step, Work
from mcp_servers.kit.splits import Splits

TASKS = Splits("gsm8k", {"train": 400, "test": 100})
FORM = "Give the result in a line of its own: 'Answer: N'."


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    task: str
    seed: int
    prompt: str
    stages: tuple[tuple[Step, ...], ...]
    """How the expert solves it; the steps of one stage do not need each other's values."""

    @property
    def steps(self) -> list[Step]:
        return [step for stage in self.stages for step in stage]

    @property
    def answer(self) -> int:
        return self.stages[-1][-1].value

    @property
    def difficulty(self) -> Literal["easy", "medium", "hard"]:
        """By the number of steps: 2, 3, or 4 and 5."""
        count = len(self.steps)
        return "easy" if count == 2 else "medium" if count == 3 else "hard"


def problem(task: str, seed: int) -> Problem:
    """The problem of this task and seed, the same in every process.

    Raises:
        LookupError: There is no such task.
    """
    _, index = TASKS.parse(task)
    work = Work()
    question = TEMPLATES[index % len(TEMPLATES)](Random(f"{task}/{seed}"), work)
    return Problem(task=task, seed=seed, prompt=f"{question} {FORM}", stages=tuple(work.stages))
