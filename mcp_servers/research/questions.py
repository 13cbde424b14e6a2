"""Questions: a chain of documents from one entity to another, and a fact about the last one."""

from __future__ import annotations

from dataclasses import dataclass, fields
from random import Random

from mcp_servers import kit
from mcp_servers.kit import Split, Splits
from mcp_servers.research.facts import Company, Entity, Facts, Person, Place, Work

TASKS = Splits("research", {"train": 400, "test": 100})
LIBRARIES: dict[Split, int] = {"train": 8, "test": 3}
"""Number of libraries per split. The splits share none, so that facts memorized in training answer no test."""
FORM = "End with a line of the form 'Answer: ...' that holds the answer and nothing else."


@dataclass(frozen=True, kw_only=True, slots=True)
class Question(kit.Problem):
    """A question; easy ones need two documents, hard ones three."""

    chain: tuple[str, ...]
    """Titles of the needed documents, in the order that leads to the answer."""
    answer: str


@dataclass(frozen=True, slots=True)
class _Fact:
    """A field of an entity, and the phrase that asks for it; `{}` is the entity."""

    field: str
    phrase: str

    def of(self, entity: Entity) -> str:
        return str(getattr(entity, self.field))


LINKS: dict[type[Entity], tuple[_Fact, ...]] = {
    Work: (
        _Fact("author", "the author of {}"),
        _Fact("publisher", "the company that published {}"),
    ),
    Person: (
        _Fact("birthplace", "the town where {} was born"),
        _Fact("employer", "the company that employed {}"),
        _Fact("teacher", "the teacher of {}"),
    ),
    Company: (
        _Fact("seat", "the town where {} has its seat"),
        _Fact("founder", "the founder of {}"),
    ),
    Place: (),
}
"""Facts that name another entity."""
ASKS: dict[type[Entity], tuple[_Fact, ...]] = {
    Work: (),
    Person: (
        _Fact("born", "In which year was {} born?"),
        _Fact("birthplace", "In which town was {} born?"),
        _Fact("teacher", "Who was the teacher of {}?"),
        _Fact("profession", "What was the profession of {}?"),
    ),
    Company: (
        _Fact("founded", "In which year was {} founded?"),
        _Fact("founder", "Who founded {}?"),
        _Fact("product", "Which products is {} known for?"),
    ),
    Place: (
        _Fact("river", "Which river flows through {}?"),
        _Fact("chartered", "From which year is the charter of {}?"),
        _Fact("county", "In which county lies {}?"),
    ),
}


def library_of(task: str, seed: int) -> tuple[Split, int]:
    """Split and number of the question's library. Raises LookupError if there is no such task."""
    split, _ = TASKS.parse(task)
    return split, seed % LIBRARIES[split]


def make_question(task: str, seed: int, facts: Facts) -> Question:
    """The question of this task and seed, about the facts of its library.

    Raises:
        LookupError: There is no such task.
    """
    split, index = TASKS.parse(task)
    rng, entities, hops = Random(f"{task}/{seed}"), facts.all(), 2 + index % 2
    starts = [*facts.works.values(), *facts.companies.values(), *facts.people.values()]
    Random(split).shuffle(starts)
    # Consecutive seeds start at different entities of their library, so that no two tasks ask the same.
    start = starts[seed // LIBRARIES[split] % len(starts)]
    while (made := _chain(rng, start, entities, hops)) is None:
        pass
    chain, question, answer = made
    return Question(
        task=task,
        seed=seed,
        prompt=f"{question} {FORM}",
        difficulty="easy" if hops == 2 else "hard",
        chain=chain,
        answer=answer,
    )


def _chain(
    rng: Random, start: Entity, entities: dict[str, Entity], hops: int
) -> tuple[tuple[str, ...], str, str] | None:
    """Draws (chain of `hops` documents, question, answer); None if the draw hit a dead end or a loop."""
    chain, entity = [start.name], entities[start.name]
    phrase = f"the {start.kind} {start.name!r}" if isinstance(start, Work) else start.name
    while len(chain) < hops:
        if not LINKS[type(entity)]:
            return None
        link = rng.choice(LINKS[type(entity)])
        entity, phrase = entities[link.of(entity)], link.phrase.format(phrase)
        chain.append(entity.name)
    ask = rng.choice(ASKS[type(entity)])
    answer = ask.of(entity)
    stated = {str(getattr(entities[name], fact.name)) for name in chain[:-1] for fact in fields(entities[name])}
    if len(set(chain)) < hops or answer in stated:  # an earlier article must not give the answer away
        return None
    return tuple(chain), ask.phrase.format(phrase), answer
