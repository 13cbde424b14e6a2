"""Templates of word problems: each draws its numbers, writes the question and records the solution's steps.

In the manner of GSM8K (Cobbe et al., 2021): elementary arithmetic, two to five steps, the steps not named in the
question. The wording is original.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from mcp_servers.calculator.arithmetic import evaluate


@dataclass(frozen=True, slots=True)
class Step:
    what: str
    """What the value is, as a noun phrase."""
    expression: str
    value: int


@dataclass(slots=True)
class Work:
    """The stages of a solution in order; the steps of one stage do not need each other's values."""

    stages: list[tuple[Step, ...]] = field(default_factory=list[tuple[Step, ...]])

    def step(self, what: str, expression: str) -> int:
        """Adds a stage of one step and returns its value."""
        (value,) = self.together((what, expression))
        return value

    def together(self, *steps: tuple[str, str]) -> list[int]:
        """Adds a stage of several steps, each (what, expression), and returns their values."""
        made = tuple(Step(what, expression, _whole(expression)) for what, expression in steps)
        self.stages.append(made)
        return [step.value for step in made]


def _whole(expression: str) -> int:
    value = evaluate(expression)
    if not isinstance(value, int):
        raise AssertionError(f"{expression} = {value} is not a whole number: the template is wrong")
    return value


Template = Callable[[Random, Work], str]
"""Returns the question, and fills `Work` with its solution."""

NAMES = (
    "Amara Bruno Celia Dario Elif Farid Greta Hiro Ines Jonas Kofi Lena Marek Nadia Oskar Priya Quentin Rosa Samir "
    "Tilda Uma Viktor Wanda Xenia Yusuf Zora"
).split()


def two(rng: Random) -> tuple[str, str]:
    first, second = rng.sample(NAMES, 2)
    return first, second


def bakery(rng: Random, work: Work) -> str:
    name, trays, each = rng.choice(NAMES), rng.randint(6, 28), rng.randint(8, 36)
    goods, kept = rng.choice(["rolls", "tarts", "pretzels", "muffins"]), rng.randint(5, 40)
    baked = work.step(f"{goods} baked", f"{trays} * {each}")
    work.step(f"{goods} sold", f"{baked} - {kept}")
    return (
        f"{name} bakes {trays} trays of {goods} with {each} on each tray. At closing time {kept} of them are left. How "
        f"many {goods} were sold?"
    )


def savings(rng: Random, work: Work) -> str:
    name, weeks, each, wish = rng.choice(NAMES), rng.randint(5, 30), rng.randint(7, 45), rng.randint(1500, 3000)
    thing = rng.choice(["a bicycle", "a cello", "a sewing machine", "a canoe"])
    saved = work.step("crowns saved", f"{weeks} * {each}")
    work.step("crowns missing", f"{wish} - {saved}")
    return (
        f"{name} is saving for {thing} that costs {wish} crowns and has put aside {each} crowns a week for {weeks} "
        f"weeks. How many crowns are still missing?"
    )


def shelves(rng: Random, work: Work) -> str:
    boxes, each, shelf = rng.randint(4, 15), rng.randint(3, 12), rng.randint(4, 15)
    total = work.step("jars in all", f"{boxes * shelf} * {each}")
    work.step("jars on each shelf", f"{total} / {shelf}")
    what = rng.choice(["jam", "honey", "pickles", "olives"])
    return (
        f"A shop gets {boxes * shelf} boxes with {each} jars of {what} in each, and puts the jars on {shelf} shelves, "
        f"the same number on each. How many jars stand on one shelf?"
    )


def ages(rng: Random, work: Work) -> str:
    (first, second), young, times = two(rng), rng.randint(4, 16), rng.randint(2, 5)
    years = rng.randint(3, 25)
    old = work.step(f"{second}'s age now", f"{young} * {times}")
    later = work.together((f"{first}'s age then", f"{young} + {years}"), (f"{second}'s age then", f"{old} + {years}"))
    work.step("their ages together", f"{later[0]} + {later[1]}")
    return (
        f"{first} is {young} years old and {second} is {times} times as old. How old will they be together in {years} "
        f"years, if their ages are added up?"
    )


def journey(rng: Random, work: Work) -> str:
    name, hours, speed = rng.choice(NAMES), rng.randint(2, 9), rng.randint(35, 90)
    more, slower = rng.randint(2, 6), rng.randint(12, 34)
    legs = work.together(("km on the road", f"{hours} * {speed}"), ("km on tracks", f"{more} * {slower}"))
    work.step("km in all", f"{legs[0]} + {legs[1]}")
    return (
        f"{name} drives {hours} hours at {speed} kilometres an hour on the road, then {more} hours at {slower} "
        f"kilometres an hour on forest tracks. How many kilometres is that in all?"
    )


def discount(rng: Random, work: Work) -> str:
    name, count, price = rng.choice(NAMES), rng.randint(3, 15), 20 * rng.randint(2, 12)
    percent = rng.choice([5, 10, 15, 20, 25, 30, 40])
    goods = rng.choice(["chairs", "lamps", "tents", "kettles"])
    full = work.step("crowns without the discount", f"{count} * {price}")
    off = work.step("crowns off", f"{full} * {percent} / 100")
    work.step("crowns to pay", f"{full} - {off}")
    return (
        f"{name} buys {count} {goods} at {price} crowns each and gets {percent} percent off the whole bill. How many "
        f"crowns does {name} pay?"
    )


def harvest(rng: Random, work: Work) -> str:
    (first, second), trees, each, less = two(rng), rng.randint(9, 40), rng.randint(11, 30), rng.randint(30, 90)
    fruit = rng.choice(["apples", "pears", "plums", "quinces"])
    mine = work.step(f"{fruit} of {first}", f"{trees} * {each}")
    yours = work.step(f"{fruit} of {second}", f"{mine} - {less}")
    work.step(f"{fruit} together", f"{mine} + {yours}")
    return (
        f"{first} picks {each} {fruit} from each of {trees} trees. {second} picks {less} fewer {fruit} than {first}. "
        f"How many {fruit} do they have together?"
    )


def paint(rng: Random, work: Work) -> str:
    wide, high, windows, each = rng.randint(12, 30), rng.randint(5, 9), rng.randint(2, 6), rng.randint(2, 4)
    litre = rng.choice([2, 3, 4])
    wall = work.step("square metres of wall", f"{wide} * {high}")
    glass = windows * each
    spare = (wall - glass) % litre  # subtracted, so that the answer is a whole number
    each_total = work.step("square metres of windows", f"{windows} * {each}")
    left = work.step("square metres to paint", f"{wall} - {each_total} - {spare}")
    work.step("litres of paint", f"{left} / {litre}")
    door = f" A door takes another {spare} square metres." if spare else ""
    return (
        f"A wall is {wide} metres long and {high} metres high. It has {windows} windows of {each} square metres "
        f"each.{door} One litre of paint covers {litre} square metres. How many litres does the rest of the wall take?"
    )


def theatre(rng: Random, work: Work) -> str:
    adults, children, price, reduced = rng.randint(20, 90), rng.randint(15, 60), rng.randint(12, 30), rng.randint(4, 11)
    hall = rng.randint(100, 300)
    taken = work.together(
        ("crowns from adults", f"{adults} * {price}"), ("crowns from children", f"{children} * {reduced}")
    )
    income = work.step("crowns taken", f"{taken[0]} + {taken[1]}")
    work.step("crowns left", f"{income} - {hall}")
    return (
        f"A theatre sells {adults} tickets at {price} crowns to adults and {children} tickets at {reduced} crowns to "
        f"children. The hall costs {hall} crowns. How many crowns are left?"
    )


def reading(rng: Random, work: Work) -> str:
    name, days, pages, weekend = rng.choice(NAMES), rng.randint(4, 9), rng.randint(12, 35), rng.randint(40, 80)
    rest = rng.randint(2, 9)
    per_day = rng.randint(10, 30)
    read = work.step("pages read on weekdays", f"{days} * {pages}")
    so_far = work.step("pages read so far", f"{read} + {weekend}")
    book = so_far + rest * per_day
    left = work.step("pages left", f"{book} - {so_far}")
    work.step("pages a day", f"{left} / {rest}")
    return (
        f"{name} reads a book of {book} pages: {pages} pages on each of {days} weekdays, then {weekend} pages at the "
        f"weekend. The rest is to be read in {rest} days, the same number of pages each day. How many pages "
        "a day is that?"
    )


def workshop(rng: Random, work: Work) -> str:
    (first, second), hours, rate, extra = two(rng), rng.randint(4, 12), rng.randint(3, 9), rng.randint(2, 6)
    price, parts = rng.randint(11, 40), rng.randint(20, 90)
    goods = rng.choice(["stools", "kites", "lanterns", "baskets"])
    other = work.step(f"{goods} an hour by {second}", f"{rate} + {extra}")
    made = work.together(
        (f"{goods} by {first}", f"{hours} * {rate}"),
        (f"{goods} by {second}", f"{hours} * {other}"),
    )
    total = work.step(f"{goods} in all", f"{made[0]} + {made[1]}")
    work.step("crowns earned", f"{total} * {price} - {parts}")
    return (
        f"{first} makes {rate} {goods} an hour, {second} makes {extra} more than that an hour. Both work {hours} hours "
        f"and sell all {goods} at {price} crowns each. The material cost {parts} crowns in all. How many "
        "crowns do they earn?"
    )


def camp(rng: Random, work: Work) -> str:
    groups, each, leaders = rng.randint(3, 9), rng.randint(6, 14), rng.randint(2, 8)
    days, meals, price = rng.randint(3, 10), rng.choice([2, 3]), rng.randint(4, 9)
    children = work.step("children", f"{groups} * {each}")
    people = work.step("people", f"{children} + {leaders}")
    daily = work.step("meals a day", f"{people} * {meals}")
    all_meals = work.step("meals in all", f"{daily} * {days}")
    work.step("crowns for food", f"{all_meals} * {price}")
    return (
        f"A summer camp has {groups} groups of {each} children, and {leaders} leaders. Everybody eats {meals} meals a "
        f"day for {days} days, and a meal costs {price} crowns. How many crowns does the food cost?"
    )


TEMPLATES: tuple[Template, ...] = (
    workshop,
    bakery,
    discount,
    theatre,
    savings,
    journey,
    camp,
    shelves,
    harvest,
    paint,
    ages,
    reading,
)
"""In an order that mixes difficulties at the beginning of a split."""
