"""The facts of a library: places, people, companies and works, and their relations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random

from mcp_servers.research import names


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    name: str
    river: str
    county: str
    chartered: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Company:
    name: str
    seat: str
    founder: str
    founded: int
    product: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Person:
    name: str
    born: int
    birthplace: str
    profession: str
    employer: str
    teacher: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    name: str
    kind: str
    author: str
    publisher: str
    year: int


Entity = Place | Company | Person | Work

PLACES, COMPANIES, PEOPLE, WORKS = 45, 60, 130, 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """All entities by name; names are unique across kinds."""

    places: dict[str, Place]
    companies: dict[str, Company]
    people: dict[str, Person]
    works: dict[str, Work]

    def all(self) -> dict[str, Entity]:
        return {**self.places, **self.companies, **self.people, **self.works}


def make_facts(rng: Random, half: names.Half) -> Facts:
    """Draws the facts of one library. Every name that an entity mentions is an entity of the library.

    Args:
        rng: Equal generator states give equal facts.
        half: The half of the words that the names are made of.
    """
    taken: set[str] = set()
    place_names = _distinct(partial(names.place, rng, half), PLACES, taken)
    company_names = _distinct(partial(names.company, rng, half), COMPANIES, taken)
    person_names = _distinct(partial(names.person, rng, half), PEOPLE, taken)
    work_names = _distinct(partial(names.work, rng, half), WORKS, taken)
    rivers, counties = rng.sample(names.RIVERS, 24), rng.sample(names.COUNTIES, 14)
    people = {name: _person(rng, name, place_names, company_names, person_names) for name in person_names}
    return Facts(
        places={
            name: Place(
                name=name, river=rng.choice(rivers), county=rng.choice(counties), chartered=rng.randint(1040, 1790)
            )
            for name in place_names
        },
        companies={
            name: Company(
                name=name,
                seat=rng.choice(place_names),
                founder=rng.choice(person_names),
                founded=rng.randint(1795, 2005),
                product=rng.choice(names.PRODUCTS),
            )
            for name in company_names
        },
        people=people,
        works={name: _work(rng, name, people, company_names) for name in work_names},
    )


def _person(rng: Random, name: str, places: list[str], companies: list[str], people: list[str]) -> Person:
    return Person(
        name=name,
        born=rng.randint(1800, 1985),
        birthplace=rng.choice(places),
        profession=rng.choice(names.PROFESSIONS),
        employer=rng.choice(companies),
        teacher=rng.choice([other for other in people if other != name]),
    )


def _work(rng: Random, name: str, people: dict[str, Person], companies: list[str]) -> Work:
    author = rng.choice(list(people.values()))
    return Work(
        name=name,
        kind=rng.choice(names.KINDS),
        author=author.name,
        publisher=rng.choice(companies),
        year=author.born + rng.randint(20, 40),
    )


def _distinct(make: Callable[[], str], count: int, taken: set[str]) -> list[str]:
    made: list[str] = []
    while len(made) < count:
        name = make()
        if name not in taken:
            taken.add(name)
            made.append(name)
    return made
