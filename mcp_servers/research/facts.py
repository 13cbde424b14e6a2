"""The facts of a library: places, people, companies and works, and their relations, which `relations.json` lists."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.resources import files
from random import Random
from typing import Literal

from pydantic import BaseModel, ConfigDict, TypeAdapter

from mcp_rollout.mcp_servers.kit import Split
from mcp_rollout.mcp_servers.research import names

Kind = Literal["place", "company", "person", "work"]

COUNTS: dict[Kind, int] = {"place": 45, "company": 60, "person": 130, "work": 100}
_YEARS = (1500, 1900)
"""Bounds of the earliest year that an article states."""
_SPAN = 90
"""Years between which the years of an article lie."""


class Relation(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    of: Kind | Literal["year", "river", "county", "product", "profession"]
    sentence: str
    """With `{it}` ("It", or a surname), `{value}`, or `{a_value}`, the value with its indefinite article."""
    split: Split | None = None
    """The split whose questions follow or ask for this relation; None if no question does."""
    link: str | None = None
    """A phrase for the entity that the value names; `{}` is the entity that has the relation."""
    ask: str | None = None
    """A question for the value."""


class Description(BaseModel):
    """What the articles about entities of a kind state.

    Each kind has three relations to each type of value: training asks for the first, tests for the second, and no
    question for the third, so that the type of a value does not give away which one a question means.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    opening: str
    remarks: list[str]
    relations: list[Relation]


@dataclass(frozen=True, kw_only=True, slots=True)
class Entity:
    kind: Kind
    name: str
    genre: str = ""
    """Of a work: novel, opera, ..."""
    facts: dict[str, str] = field(default_factory=dict[str, str])
    """Values by relation."""


@cache
def descriptions() -> dict[Kind, Description]:
    source = files("mcp_rollout.mcp_servers.research") / "relations.json"
    return TypeAdapter(dict[Kind, Description]).validate_json(source.read_bytes())


def make_facts(rng: Random, half: names.Half) -> dict[str, Entity]:
    """Draws the entities of one library, by name. Names are unique across kinds, and each that a fact mentions is an
    entity of the library.

    Args:
        rng: Equal generator states give equal facts.
        half: The half of the words that the names are made of.
    """
    taken: set[str] = set()
    make: dict[Kind, Callable[[Random, names.Half], str]] = {
        "place": names.place,
        "company": names.company,
        "person": names.person,
        "work": names.work,
    }
    of_kind = {kind: _distinct(partial(make[kind], rng, half), count, taken) for kind, count in COUNTS.items()}
    values: dict[str, list[str]] = {
        **of_kind,
        "river": rng.sample(names.RIVERS, 24),
        "county": rng.sample(names.COUNTIES, 14),
        "product": list(names.PRODUCTS),
        "profession": list(names.PROFESSIONS),
    }
    return {
        name: Entity(
            kind=kind,
            name=name,
            genre=rng.choice(names.KINDS) if kind == "work" else "",
            facts=_facts(rng, name, descriptions()[kind].relations, values),
        )
        for kind in COUNTS
        for name in of_kind[kind]
    }


def _facts(rng: Random, name: str, relations: list[Relation], values: dict[str, list[str]]) -> dict[str, str]:
    """A value for each relation, different ones for relations of the same type; the first year is the earliest."""
    found: dict[str, str] = {}
    for type_ in dict.fromkeys(relation.of for relation in relations):
        alike = [relation.name for relation in relations if relation.of == type_]
        if type_ == "year":
            first = rng.randint(*_YEARS)
            drawn = [str(first), *(str(first + later) for later in rng.sample(range(1, _SPAN), len(alike) - 1))]
        else:
            drawn = rng.sample([value for value in values[type_] if value != name], len(alike))
        found |= dict(zip(alike, drawn, strict=True))
    return found


def _distinct(make: Callable[[], str], count: int, taken: set[str]) -> list[str]:
    made: list[str] = []
    while len(made) < count:
        name = make()
        if name not in taken:
            taken.add(name)
            made.append(name)
    return made
