"""Word problems, each determined by its task id and a seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Literal

from mcp_servers.kit.answers import Split
from mcp_servers.kit.splits import Splits

SIZES: dict[Split, int] = {"train": 80, "test": 40}
"""Number of tasks per split."""
TASKS = Splits("calculator", SIZES)

Step = tuple[str, int, int]
"""A tool's name and its two arguments."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    task: str
    seed: int
    prompt: str
    stages: tuple[tuple[Step, ...], ...]
    """How the expert solves it; the steps of one stage do not need each other's results."""
    answer: int

    @property
    def difficulty(self) -> Literal["easy", "medium", "hard"]:
        return "easy" if len(self.stages) == 1 else "medium" if len(self.stages) == 2 else "hard"


def problem(task: str, seed: int) -> Problem:
    """The problem of this task and seed, the same in every process.

    Raises:
        LookupError: There is no such task.
    """
    _, index = TASKS.parse(task)
    rng = Random(f"{task}/{seed}")
    question, stages, answer = _KINDS[index % len(_KINDS)](rng)
    prompt = f"{question} End your answer with a line of the form 'Answer: N'."
    return Problem(task=task, seed=seed, prompt=prompt, stages=stages, answer=answer)


_Made = tuple[str, tuple[tuple[Step, ...], ...], int]


def _sum(rng: Random) -> _Made:
    a, b = rng.randint(100, 9999), rng.randint(100, 9999)
    return f"What is {a} + {b}?", ((("add", a, b),),), a + b


def _harvest(rng: Random) -> _Made:
    rows, trees, spoiled = rng.randint(12, 80), rng.randint(12, 80), rng.randint(5, 99)
    question = (
        f"An orchard has {rows} rows with {trees} trees each. A storm felled {spoiled} of them. How many trees stand?"
    )
    return question, ((("multiply", rows, trees),), (("subtract", rows * trees, spoiled),)), rows * trees - spoiled


def _difference(rng: Random) -> _Made:
    low, high = rng.randint(100, 4999), rng.randint(5000, 9999)
    return f"What is {high} minus {low}?", ((("subtract", high, low),),), high - low


def _tickets(rng: Random) -> _Made:
    adults, children = rng.randint(11, 60), rng.randint(11, 60)
    price, reduced, costs = rng.randint(12, 30), rng.randint(3, 11), rng.randint(20, 90)
    income, lower = adults * price, children * reduced
    question = (
        f"A theatre sold {adults} tickets at {price} crowns and {children} at {reduced} crowns, and paid {costs} "
        "crowns for the hall. How many crowns are left?"
    )
    first = (("multiply", adults, price), ("multiply", children, reduced))
    stages = (first, (("add", income, lower),), (("subtract", income + lower, costs),))
    return question, stages, income + lower - costs


def _shares(rng: Random) -> _Made:
    people, share, extra = rng.randint(4, 25), rng.randint(11, 90), rng.randint(3, 50)
    total = people * share
    question = (
        f"{people} neighbours share {total} bricks equally; Ada already owned {extra}. How many bricks has Ada now?"
    )
    return question, ((("divide", total, people),), (("add", share, extra),)), share + extra


_KINDS: tuple[Callable[[Random], _Made], ...] = (_tickets, _sum, _harvest, _difference, _shares)
