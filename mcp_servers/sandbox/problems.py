"""The problems: each is determined by its task id and a seed."""

from __future__ import annotations

import json
import zlib
from collections import Counter
from dataclasses import dataclass
from random import Random
from typing import Any

from mcp_servers.kit.answers import Split
from mcp_servers.kit.splits import Splits
from mcp_servers.sandbox.lists import NUMBERS, WORDS
from mcp_servers.sandbox.steps import MIDDLE_STEPS, Difficulty, Family, make
from mcp_servers.sandbox.tables import GRIDS, LEDGERS, SPANS

TASKS = Splits("sandbox", {"train": 400, "test": 100})
EXAMPLES, HIDDEN = 3, 12
"""Tests that the statement shows, and others that it does not."""
MAX_ALIKE = 2
"""So many hidden tests at most may be passed by giving back a constant or the argument."""

FUNCTION = "solve"
FAMILIES = (NUMBERS, WORDS, GRIDS, LEDGERS, SPANS)


@dataclass(frozen=True, slots=True)
class Check:
    argument: Any
    expected: Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    task: str
    seed: int
    prompt: str
    difficulty: Difficulty
    examples: tuple[Check, ...]
    hidden: tuple[Check, ...]
    solution: str


def problem(task: str, seed: int) -> Problem:
    """The problem of this task and seed, the same in every process.

    Raises:
        LookupError: There is no such task.
    """
    split, index = TASKS.parse(task)
    rng = Random(f"{task}/{seed}")
    family, difficulty = FAMILIES[index % len(FAMILIES)], tuple(MIDDLE_STEPS)[index % len(MIDDLE_STEPS)]
    while True:
        made = make(rng, family, difficulty)
        tests = _tests(rng, family, made.solution) if _belongs(made.statement) == split else None
        if tests is not None:
            break
    examples = tests[:EXAMPLES]
    shown = "\n".join(f"{FUNCTION}({test.argument!r}) == {test.expected!r}" for test in examples)
    return Problem(
        task=task,
        seed=seed,
        prompt=f"{made.statement}\n\nExamples:\n{shown}",
        difficulty=difficulty,
        examples=tuple(examples),
        hidden=tuple(tests[EXAMPLES:]),
        solution=made.solution,
    )


def _belongs(statement: str) -> Split:
    """The split that a statement belongs to, whatever task and seed came to it: the splits share no problem."""
    return "test" if zlib.crc32(statement.encode()) % 5 == 0 else "train"


def _tests(rng: Random, family: Family, solution: str) -> list[Check] | None:
    """Examples and hidden tests, all of them unlike; None where the problem's answers are too much alike."""
    namespace: dict[str, Any] = {}
    exec(solution, namespace)  # our own text, put together from the families' lines
    drawn: dict[str, Check] = {}
    while len(drawn) < EXAMPLES + HIDDEN:
        argument = family.draw(rng)
        drawn[json.dumps(argument)] = Check(argument, namespace[FUNCTION](argument))
    tests = list(drawn.values())
    hidden = tests[EXAMPLES:]
    commonest = max(Counter(json.dumps(test.expected) for test in hidden).values())
    unchanged = sum(test.expected == test.argument for test in hidden)
    return tests if max(commonest, unchanged) <= MAX_ALIKE else None
