"""How a problem is put together: from steps, each of them words for the statement and a line of the solution.

A step's line works on `it`; `{k}` stands for a parameter, drawn when the problem is made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

Difficulty = Literal["easy", "medium", "hard"]
MIDDLE_STEPS: dict[Difficulty, int] = {"easy": 1, "medium": 2, "hard": 3}


@dataclass(frozen=True, slots=True)
class Step:
    words: str
    line: str
    low: int = 2
    high: int = 9
    """Bounds of the parameter `k`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    name: str
    argument: str
    opening: str
    before: str
    """The line before the first step: what `it` is at first."""
    middle: tuple[Step, ...]
    last: tuple[Step, ...]
    draw: Callable[[Random], Any]
    """A random argument for the function."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Made:
    statement: str
    solution: str
    """Source of a function `solve` that does what the statement says."""


def make(rng: Random, family: Family, difficulty: Difficulty) -> Made:
    """Puts a problem together; its parameters are in its words and in its lines."""
    steps = [*rng.sample(family.middle, MIDDLE_STEPS[difficulty]), rng.choice(family.last)]
    told: list[str] = []
    lines = [family.before]
    for step in steps:
        k = rng.randint(step.low, step.high)
        told.append(step.words.format(k=k))
        lines.append(step.line.format(k=k))
    numbered = "\n".join(f"{number}. {words}" for number, words in enumerate(told, 1))
    statement = f"Write a Python function solve({family.argument}). {family.opening}\n{numbered}"
    body = "\n".join(f"    {part}" for line in lines for part in line.split("\n"))
    return Made(statement=statement, solution=f"def solve({family.argument}):\n{body}\n")
