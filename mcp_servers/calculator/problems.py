"""Word problems with their expert and score, each problem determined by its task id and a seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from mcp_servers import kit
from mcp_servers.calculator.arithmetic import answer_in
from mcp_servers.kit import Call, Expert, ExpertTurn, Message, Score, Splits, told_texts

TASKS = Splits("calculator", {"train": 80, "test": 40})

Step = tuple[str, int, int]
"""A tool's name and its two arguments."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem(kit.Problem):
    stages: tuple[tuple[Step, ...], ...]
    """The expert's calls; the steps of one stage do not need each other's results."""
    answer: int


def problem(task: str, seed: int) -> Problem:
    """The problem of this task and seed, the same in every process.

    Raises:
        LookupError: There is no such task.
    """
    _, index = TASKS.parse(task)
    rng = Random(f"{task}/{seed}")
    question, stages, answer = _KINDS[index % len(_KINDS)](rng)
    return Problem(
        task=task,
        seed=seed,
        prompt=f"{question} End your answer with a line of the form 'Answer: N'.",
        difficulty="easy" if len(stages) == 1 else "medium" if len(stages) == 2 else "hard",
        stages=stages,
        answer=answer,
    )


def expert(problem: Problem) -> Expert:
    turns: list[ExpertTurn] = []
    for stage in problem.stages:
        calls = [Call(name=name, arguments={"a": a, "b": b}) for name, a, b in stage]
        what = " and ".join(f"{name} {a} and {b}" for name, a, b in stage)
        turns.append(ExpertTurn(thinking=f"Next I {what}.", calls=calls))
    told = f"I worked it out step by step.\nAnswer: {problem.answer}"
    return Expert(turns=[*turns, ExpertTurn(thinking="That is the last step.", content=told)])


def score(problem: Problem, messages: Sequence[Message]) -> Score:
    """1.0 for the right number in the last message's line `Answer: N`, 0.1 for a wrong one.

    Two different answers count as none.
    """
    texts = told_texts(messages)
    given = answer_in(texts[-1]) if texts else None
    form, answer = given is not None, given == problem.answer
    return Score(score=0.9 * answer + 0.1 * form, parts={"answer": float(answer), "form": float(form)})


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
