"""The questions: a chain from one entity to the next, and something about the last one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from random import Random
from typing import Literal

from mcp_servers.kit.answers import Split
from mcp_servers.kit.splits import Splits
from mcp_servers.research.facts import Company, Entity, Facts, Person, Place, Work

TASKS = Splits("research", {"train": 400, "test": 100})
LIBRARIES: dict[Split, int] = {"train": 8, "test": 3}
"""Number of libraries per split. The splits share none: what was learnt by heart in training answers no test."""
FORM = "End with a line of the form 'Answer: ...' that holds the answer and nothing else."


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    task: str
    seed: int
    prompt: str
    chain: tuple[str, ...]
    """Titles of the documents that it takes, in the order in which they lead to the answer."""
    answer: str

    @property
    def difficulty(self) -> Literal["easy", "hard"]:
        """Easy takes two documents, hard takes three."""
        return "easy" if len(self.chain) == 2 else "hard"


@dataclass(frozen=True, slots=True)
class _Link:
    """A fact that leads to another entity, and what that one is called by it."""

    follow: Callable[[Entity], str]
    phrase: str


def _of(kind: type[Entity], field: str) -> Callable[[Entity], str]:
    def value(entity: Entity) -> str:
        assert isinstance(entity, kind)
        return str(getattr(entity, field))

    return value


LINKS: dict[type[Entity], tuple[_Link, ...]] = {
    Work: (
        _Link(_of(Work, "author"), "the author of {}"),
        _Link(_of(Work, "publisher"), "the company that published {}"),
    ),
    Person: (
        _Link(_of(Person, "birthplace"), "the town where {} was born"),
        _Link(_of(Person, "employer"), "the company that employed {}"),
        _Link(_of(Person, "teacher"), "the teacher of {}"),
    ),
    Company: (
        _Link(_of(Company, "seat"), "the town where {} has its seat"),
        _Link(_of(Company, "founder"), "the founder of {}"),
    ),
    Place: (),
}
ASKS: dict[type[Entity], tuple[_Link, ...]] = {
    Work: (),
    Person: (
        _Link(_of(Person, "born"), "In which year was {} born?"),
        _Link(_of(Person, "birthplace"), "In which town was {} born?"),
        _Link(_of(Person, "teacher"), "Who was the teacher of {}?"),
        _Link(_of(Person, "profession"), "What was the profession of {}?"),
    ),
    Company: (
        _Link(_of(Company, "founded"), "In which year was {} founded?"),
        _Link(_of(Company, "founder"), "Who founded {}?"),
        _Link(_of(Company, "product"), "Which products is {} known for?"),
    ),
    Place: (
        _Link(_of(Place, "river"), "Which river flows through {}?"),
        _Link(_of(Place, "chartered"), "From which year is the charter of {}?"),
        _Link(_of(Place, "county"), "In which county lies {}?"),
    ),
}


def library_of(task: str, seed: int) -> tuple[Split, int]:
    """Split and number of the library that the question is about. Raises LookupError: there is no such task."""
    split, _ = TASKS.parse(task)
    return split, seed % LIBRARIES[split]


def make_question(task: str, seed: int, facts: Facts) -> Question:
    """The question of this task and seed, over the facts of its library.

    Raises:
        LookupError: There is no such task.
    """
    split, index = TASKS.parse(task)
    rng, entities, hops = Random(f"{task}/{seed}"), facts.all(), 2 + index % 2
    starts = [*facts.works.values(), *facts.companies.values(), *facts.people.values()]
    Random(split).shuffle(starts)
    # Seeds that follow each other begin at different entities of their library, or two tasks might ask the same.
    start = starts[seed // LIBRARIES[split] % len(starts)]
    while True:
        made = _chain(rng, start, entities, hops)
        if made is not None:
            break
    chain, question, answer = made
    return Question(
        task=task,
        seed=seed,
        prompt=f"{question} {FORM}",
        chain=chain,
        answer=answer,
    )


def _chain(
    rng: Random, start: Entity, entities: dict[str, Entity], hops: int
) -> tuple[tuple[str, ...], str, str] | None:
    """A chain of that many documents, or None where this try came to a dead end or back to where it was."""
    chain, entity = [start.name], entities[start.name]
    phrase = f"the {start.kind} {start.name!r}" if isinstance(start, Work) else start.name
    while len(chain) < hops:
        if not LINKS[type(entity)]:
            return None
        link = rng.choice(LINKS[type(entity)])
        entity, phrase = entities[link.follow(entity)], link.phrase.format(phrase)
        chain.append(entity.name)
    ask = rng.choice(ASKS[type(entity)])
    answer = ask.follow(entity)
    said = {str(getattr(entities[name], fact.name)) for name in chain[:-1] for fact in fields(entities[name])}
    if len(set(chain)) < hops or answer in said:  # or the answer might be taken from an article that is about another
        return None
    return tuple(chain), ask.phrase.format(phrase), answer
