"""The parts of a problem: families of steps, each step a sentence of the statement and a line of the solution.

A step's line works on `it`; `{k}` is replaced by a parameter that is drawn when the problem is made.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from mcp_rollout.mcp_servers.kit.records import Difficulty

FUNCTION = "solve"
MIDDLE_STEPS: dict[Difficulty, int] = {"easy": 1, "medium": 2, "hard": 3}
EXAMPLES, HIDDEN = 3, 12
"""Number of tests that the statement shows, and of tests that it does not show."""
MAX_ALIKE = 2
"""Maximum of hidden tests that returning a constant or the argument may pass."""


@dataclass(frozen=True, slots=True)
class Step:
    words: str
    line: str
    k: tuple[int, int] = (2, 9)
    """Bounds of the parameter."""


def fixed(words: str, line: str) -> Step:
    """A step without a parameter."""
    return Step(words, line, (0, 0))


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    argument: str
    opening: str
    before: str
    """The line before the first step, which sets `it`."""
    middle: tuple[Step, ...]
    last: tuple[Step, ...]
    draw: Callable[[Random], Any]
    """Draws an argument for the function."""


@dataclass(frozen=True, slots=True)
class Check:
    """A test of the function."""

    argument: Any
    expected: Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Made:
    statement: str
    solution: str
    """Source of a function `solve` that does what the statement says."""

    def tests(self, rng: Random, draw: Callable[[Random], Any]) -> list[Check] | None:
        """Distinct tests, the examples first; None if their expected values are too much alike."""
        namespace: dict[str, Any] = {}
        exec(self.solution, namespace)  # trusted source: made of the families' lines
        drawn: dict[str, Check] = {}
        while len(drawn) < EXAMPLES + HIDDEN:
            argument = draw(rng)
            drawn[json.dumps(argument)] = Check(argument, namespace[FUNCTION](argument))
        tests = list(drawn.values())
        hidden = tests[EXAMPLES:]
        commonest = max(Counter(json.dumps(test.expected) for test in hidden).values())
        unchanged = sum(test.expected == test.argument for test in hidden)
        return tests if max(commonest, unchanged) <= MAX_ALIKE else None


def make(rng: Random, family: Family, difficulty: Difficulty) -> Made:
    """Composes a problem; its parameters appear in the statement and in the solution."""
    steps = [*rng.sample(family.middle, MIDDLE_STEPS[difficulty]), rng.choice(family.last)]
    sentences: list[str] = []
    lines = [family.before]
    for step in steps:
        k = rng.randint(*step.k)
        sentences.append(step.words.format(k=k))
        lines.append(step.line.format(k=k))
    numbered = "\n".join(f"{number}. {words}" for number, words in enumerate(sentences, 1))
    statement = f"Write a Python function {FUNCTION}({family.argument}). {family.opening}\n{numbered}"
    body = "\n".join(f"    {part}" for line in lines for part in line.split("\n"))
    return Made(statement=statement, solution=f"def {FUNCTION}({family.argument}):\n{body}\n")
