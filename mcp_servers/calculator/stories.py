"""Word problems: facts in a random order, a question about some of them, and sentences that do not matter.

The families are in `families.json`. Training problems hold an odd number of numbers, test problems an even one, so that
how many numbers a problem holds says nothing about what a test problem asks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from random import Random

from pydantic import BaseModel, ConfigDict

from mcp_rollout.mcp_servers import kit
from mcp_rollout.mcp_servers.calculator.arithmetic import evaluate
from mcp_rollout.mcp_servers.kit import Split, Splits
from mcp_rollout.mcp_servers.kit.records import Difficulty

_VARIABLE = re.compile(r"[a-z_]+")
_NUMBER = re.compile(r"\d+")
_ASIDES = (2, 3)
"""Smallest and greatest number of sentences that do not matter, before one more is added for the parity."""


class _Data(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Question(_Data):
    ask: str
    steps: list[dict[str, str]]
    """The stages of the solution, each expressions by the name of their value: two operands, which are numbers,
    variables or values of earlier stages."""


class Family(_Data):
    numbers: dict[str, tuple[int, int]]
    """Bounds by variable."""
    words: dict[str, list[str]] = {}
    """Choices by variable."""
    facts: list[str]
    asides: list[str]
    """Sentences that no question needs, each with a number `n`."""
    questions: list[Question]


class _Families(_Data):
    names: dict[Split, list[str]]
    """Choices of the variable `name`."""
    train: list[Family]
    test: list[Family]


@dataclass(frozen=True, slots=True)
class Step:
    what: str
    """What the value is, as a phrase."""
    expression: str
    value: int


@dataclass(frozen=True, slots=True)
class Story:
    text: str
    stages: tuple[tuple[Step, ...], ...]
    """The solution; the steps of one stage do not need each other's values."""

    @property
    def steps(self) -> list[Step]:
        return [step for stage in self.stages for step in stage]

    @property
    def answer(self) -> int:
        return self.stages[-1][-1].value


def questions(split: Split) -> Iterator[tuple[Family, Question]]:
    """Yields each question of each family of the split, the first question of each family first."""
    families = _families().train if split == "train" else _families().test
    for place in range(max(len(family.questions) for family in families)):
        yield from ((family, family.questions[place]) for family in families if place < len(family.questions))


def tell(rng: Random, split: Split, family: Family, question: Question) -> Story:
    """Draws numbers until every step has a positive whole value, and writes the story."""
    words = {key: rng.choice(choices) for key, choices in family.words.items()}
    words["name"] = rng.choice(_families().names[split])
    numbers = {key: rng.randint(*bounds) for key, bounds in family.numbers.items()}
    while (stages := _solved(question, numbers)) is None:
        numbers = {key: rng.randint(*bounds) for key, bounds in family.numbers.items()}
    sentences = [fact.format(**words, **numbers) for fact in family.facts]
    ask = question.ask.format(**words, **numbers)
    asides = rng.randint(*_ASIDES)
    asides += (len(_NUMBER.findall(" ".join([*sentences, ask]))) + asides + (split == "train")) % 2
    for aside in rng.sample(family.asides, asides):
        # Within the bounds of a number that matters, so that its size does not give it away.
        number = rng.randint(*rng.choice(list(family.numbers.values())))
        sentences.append(aside.format(**words, n=number))
    rng.shuffle(sentences)
    return Story(text=" ".join([*sentences, ask]), stages=stages)


@dataclass(frozen=True, kw_only=True, slots=True)
class StoryProblem(kit.Problem):
    """A word problem of an environment."""

    story: Story

    @property
    def answer(self) -> int:
        return self.story.answer


def make_problem(
    task: str,
    seed: int,
    tasks: Splits,
    difficulties: Sequence[Difficulty],
    choices: Callable[[Split, Difficulty], Sequence[tuple[Family, Question]]],
    *,
    ending: str,
) -> StoryProblem:
    """The problem of this task and seed, the same in every process.

    Args:
        difficulties: Of consecutive tasks, in a cycle.
        choices: The families and questions of a difficulty, which consecutive cycles go through.
        ending: The last sentence of the prompt.

    Raises:
        LookupError: There is no such task.
    """
    split, index = tasks.parse(task)
    difficulty = difficulties[index % len(difficulties)]
    found = choices(split, difficulty)
    story = tell(Random(f"{task}/{seed}"), split, *found[index // len(difficulties) % len(found)])
    return StoryProblem(task=task, seed=seed, prompt=f"{story.text} {ending}", difficulty=difficulty, story=story)


@cache
def _families() -> _Families:
    source = files("mcp_rollout.mcp_servers.calculator") / "families.json"
    return _Families.model_validate_json(source.read_bytes())


def _solved(question: Question, numbers: dict[str, int]) -> tuple[tuple[Step, ...], ...] | None:
    """The stages with their values; None if one is not a positive whole number."""
    values = dict(numbers)
    stages: list[tuple[Step, ...]] = []
    for stage in question.steps:
        made: list[Step] = []
        for name, expression in stage.items():
            written = _written(expression, values)
            value = evaluate(written)
            if not isinstance(value, int) or value <= 0:
                return None
            made.append(Step(name.replace("_", " "), written, value))
        values |= {name: step.value for name, step in zip(stage, made, strict=True)}
        stages.append(tuple(made))
    return tuple(stages)


def _written(expression: str, values: dict[str, int]) -> str:
    return _VARIABLE.sub(lambda found: str(values[found[0]]), expression)
