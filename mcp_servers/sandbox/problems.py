"""The problems with their scripted expert, each determined by its task id and a seed."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from random import Random

from mcp_servers import kit
from mcp_servers.kit import Call, Expert, ExpertTurn, Split, Splits
from mcp_servers.sandbox.families import FAMILIES
from mcp_servers.sandbox.steps import EXAMPLES, FUNCTION, MIDDLE_STEPS, Check, make

TASKS = Splits("sandbox", {"train": 400, "test": 100})


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem(kit.Problem):
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
        tests = made.tests(rng, family.draw) if _belongs(made.statement) == split else None
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
    """The split of a statement, independent of task and seed, so that the splits share no problem."""
    return "test" if zlib.crc32(statement.encode()) % 5 == 0 else "train"


def expert(problem: Problem) -> Expert:
    """Runs the solution on an example, submits it, and reports."""
    example = problem.examples[0]
    tried = f"{problem.solution}\nprint({FUNCTION}({example.argument!r}))\n"
    return Expert(
        turns=[
            ExpertTurn(
                thinking="One line for each step. I try it on the first example.",
                calls=[Call(name="run_python", arguments={"code": tried})],
            ),
            ExpertTurn(
                thinking=f"The example gives {example.expected!r}, as it should.",
                calls=[Call(name="submit", arguments={"code": problem.solution})],
            ),
            ExpertTurn(thinking="All examples passed.", content="The function is submitted."),
        ]
    )
