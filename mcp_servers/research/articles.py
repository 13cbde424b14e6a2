"""Articles: each states all facts of its entity, in a random order, and none of another entity."""

from __future__ import annotations

from random import Random

from mcp_servers.research.facts import Company, Entity, Person, Place, Work


def article(rng: Random, entity: Entity) -> str:
    match entity:
        case Place():
            first, rest = _place(rng, entity)
        case Company():
            first, rest = _company(rng, entity)
        case Person():
            first, rest = _person(rng, entity)
        case Work():
            first, rest = _work(rng, entity)
    rng.shuffle(rest)
    return " ".join([first, *rest])


def _place(rng: Random, it: Place) -> tuple[str, list[str]]:
    return f"{it.name} is a town.", [
        f"It lies in the county of {it.county}.",
        f"The river {it.river} flows through it, crossed by {rng.randint(2, 9)} bridges.",
        f"Its charter dates from the year {it.chartered}.",
        f"The town has about {rng.randint(4, 90)} thousand inhabitants.",
        rng.choice(["A market is held on Saturdays.", "The old walls still stand.", "Trains stop there every hour."]),
    ]


def _company(rng: Random, it: Company) -> tuple[str, list[str]]:
    return f"{it.name} is a company.", [
        f"It has its seat in {it.seat}.",
        f"It was set up in {it.founded} by {it.founder}.",
        f"It is known for its {it.product}, which are sold in {rng.randint(4, 40)} countries.",
        f"Some {rng.randint(30, 900)} people work there.",
        rng.choice(
            ["Its archive is open to visitors.", "It is still owned by one family.", "It also publishes books."]
        ),
    ]


def _person(rng: Random, it: Person) -> tuple[str, list[str]]:
    surname = it.name.rpartition(" ")[2]
    return f"{it.name} appears in several encyclopedias.", [
        f"{surname} was born in {it.birthplace} in {it.born}.",
        f"By profession {surname} was {_a(it.profession)}.",
        f"For many years {surname} was employed by {it.employer}.",
        f"{surname} was a pupil of {it.teacher}.",
        rng.choice(["The letters have been edited.", "A street bears the name.", "No portrait is known."]),
    ]


def _work(rng: Random, it: Work) -> tuple[str, list[str]]:
    return f"{it.name} is {_a(it.kind)}.", [
        f"Its author is {it.author}.",
        f"{it.publisher} published it in {it.year}.",
        f"The first edition had {rng.randint(2, 50)} hundred copies.",
        rng.choice(["Critics were divided.", "It was an immediate success.", "A second edition followed soon."]),
    ]


def _a(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
