"""Questions: a chain of documents from one entity to another, and a fact about the last one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from mcp_rollout.mcp_servers import kit
from mcp_rollout.mcp_servers.kit import Split, Splits
from mcp_rollout.mcp_servers.research.facts import Entity, descriptions

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


def library_of(task: str, seed: int) -> tuple[Split, int]:
    """Split and number of the question's library. Raises LookupError if there is no such task."""
    split, _ = TASKS.parse(task)
    return split, seed % LIBRARIES[split]


def make_question(task: str, seed: int, facts: Mapping[str, Entity]) -> Question:
    """The question of this task and seed, about the facts of its library.

    Raises:
        LookupError: There is no such task.
    """
    split, index = TASKS.parse(task)
    rng, hops = Random(f"{task}/{seed}"), 2 + index % 2
    starts = [entity for entity in facts.values() if entity.kind != "place"]  # no relation leads away from a place
    Random(split).shuffle(starts)
    # Consecutive seeds start at different entities of their library, so that no two tasks ask the same.
    start = starts[seed // LIBRARIES[split] % len(starts)]
    while (made := _chain(rng, split, start, facts, hops)) is None:
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
    rng: Random, split: Split, start: Entity, entities: Mapping[str, Entity], hops: int
) -> tuple[tuple[str, ...], str, str] | None:
    """Draws (chain of `hops` documents, question, answer); None if the draw hit a dead end or a loop."""
    chain = [start]
    phrase = f"the {start.genre} {start.name!r}" if start.kind == "work" else start.name
    while len(chain) < hops:
        links = [one for one in descriptions()[chain[-1].kind].relations if one.link and one.split == split]
        if not links:
            return None
        link = rng.choice(links)
        assert link.link is not None
        chain.append(entities[chain[-1].facts[link.name]])
        phrase = link.link.format(phrase)
    asks = [one for one in descriptions()[chain[-1].kind].relations if one.ask and one.split == split]
    ask = rng.choice(asks)
    assert ask.ask is not None
    answer, names = chain[-1].facts[ask.name], tuple(entity.name for entity in chain)
    stated = {value for entity in chain[:-1] for value in (entity.name, *entity.facts.values())}
    if len(set(names)) < hops or answer in stated:  # an earlier article must not give the answer away
        return None
    return names, ask.ask.format(phrase), answer
