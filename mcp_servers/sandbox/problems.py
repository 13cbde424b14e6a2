"""The problems: each is determined by its task id and a seed."""

from __future__ import annotations

import json
import zlib
from collections import Counter
from dataclasses import dataclass
from random import Random
from typing import Any

from mcp_servers.kit.answers import Split
from mcp_servers.sandbox.lists import NUMBERS, WORDS
from mcp_servers.sandbox.steps import MIDDLE_STEPS, Difficulty, Family, make
from mcp_servers.sandbox.tables import GRIDS, LEDGERS, SPANS

SIZES: dict[Split, int] = {"train": 400, "test": 100}
"""Number of tasks per split."""
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


def task_names(split: Split) -> list[str]:
    return [f"sandbox-{split}-{index:04d}" for index in range(SIZES[split])]


def default_seed(task: str) -> int:
    """The seed that `tasks` lists with a task; the splits' seeds do not overlap either."""
    split, index = _parse(task)
    return index + (100_000 if split == "test" else 0)


def problem(task: str, seed: int) -> Problem:
    """The problem of this task and seed, the same in every process.

    Raises:
        LookupError: There is no such task.
    """
    split, index = _parse(task)
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


def _parse(task: str) -> tuple[Split, int]:
    for split in SIZES:
        number = task.removeprefix(f"sandbox-{split}-")
        if number != task and number.isascii() and number.isdigit() and task in task_names(split):
            return split, int(number)
    raise LookupError(f"there is no task {task!r} here")
