"""A task's initial tree: an office's reports, letters, notes and settings.

Remarks in the files name years, towns, writers and amounts that no task asks for.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from mcp_rollout.mcp_servers.filesystem_ops.tree import Tree

TOWNS = "Alta Bergen Drammen Fauske Gjovik Hamar Larvik Molde Narvik Odda Rena Skien Tromso Vardo".split()
WRITERS = "Ada Bo Carla Deniz Erik Fatou Goran Hilde Ivo Jelena".split()
SUBJECTS = "Budget Canteen Garden Insurance Lifts Parking Printer Roof Security Training Travel Windows".split()
REMARKS = (
    "Nothing unusual happened.",
    "Two deliveries came late.",
    "The new shelves are up.",
    "Visitors asked for longer hours.",
    "One machine is out of order.",
    "The heating was repaired.",
)
YEARS = (2021, 2022, 2023, 2024)
COMMON = 3
"""Number of files that a setting to edit occurs in, at least."""
SETTINGS = {"timeout": (10, 90), "retries": (2, 9), "width": (60, 99), "threads": (2, 32), "depth": (3, 20)}


@dataclass(frozen=True, slots=True)
class Report:
    path: str
    year: int
    town: str
    total: int


@dataclass(frozen=True, slots=True)
class Letter:
    path: str
    date: str
    writer: str


@dataclass(frozen=True, slots=True)
class Note:
    path: str
    title: str
    town: str


@dataclass(frozen=True, slots=True)
class Setting:
    path: str
    values: dict[str, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Office:
    """The files and their contents as records, in the order of their paths."""

    tree: Tree
    reports: tuple[Report, ...]
    letters: tuple[Letter, ...]
    notes: tuple[Note, ...]
    settings: tuple[Setting, ...]


def make_office(rng: Random) -> Office:
    tree: Tree = {}
    reports = _reports(rng, tree)
    letters = _letters(rng, tree)
    notes = _notes(rng, tree)
    settings = _settings(rng, tree)
    tree["README.txt"] = (
        f"Files of the office in {rng.choice(TOWNS)}.\nAsk {rng.choice(WRITERS)} before you change them.\n"
    )
    return Office(tree=tree, reports=reports, letters=letters, notes=notes, settings=settings)


def _reports(rng: Random, tree: Tree) -> tuple[Report, ...]:
    """File names are numbers, so only the text gives the year. No town has two reports of a year."""
    kinds = rng.sample([(year, town) for year in YEARS for town in TOWNS], rng.randint(8, 13))
    made: list[Report] = []
    for number, (year, town) in enumerate(kinds, rng.randint(100, 800)):
        report = Report(f"reports/report-{number}.txt", year, town, rng.randint(1000, 99999))
        remark = f"{rng.choice(REMARKS)} In {rng.choice(YEARS)} {rng.choice(TOWNS)} had {rng.randint(1000, 99999)}."
        tree[report.path] = f"Year: {year}\nTown: {town}\nTotal: {report.total}\n\n{remark}\n"
        made.append(report)
    return tuple(made)


def _letters(rng: Random, tree: Tree) -> tuple[Letter, ...]:
    made: list[Letter] = []
    for number in range(1, rng.randint(3, 6) + 1):
        date = f"{rng.choice(YEARS)}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"
        letter = Letter(f"letters/letter{number}.txt", date, rng.choice(WRITERS))
        if any((letter.date, letter.writer) == (other.date, other.writer) for other in made):
            continue
        mentioned = f"{rng.choice(WRITERS)} wrote about it on {rng.choice(YEARS)}-{rng.randint(10, 12)}-15."
        tree[letter.path] = f"From: {letter.writer}\nDate: {date}\n\n{rng.choice(REMARKS)} {mentioned}\n"
        made.append(letter)
    return tuple(made)


def _notes(rng: Random, tree: Tree) -> tuple[Note, ...]:
    made: list[Note] = []
    for subject in sorted(rng.sample(SUBJECTS, rng.randint(4, 7))):
        town, other = rng.sample(TOWNS, 2)
        note = Note(f"notes/{subject.lower()}.md", f"{subject} in {town}, {rng.choice(YEARS)}", town)
        tree[note.path] = f"# {note.title}\n\n{rng.choice(REMARKS)} {other} asked for a copy in {rng.choice(YEARS)}.\n"
        made.append(note)
    return tuple(made)


def _settings(rng: Random, tree: Tree) -> tuple[Setting, ...]:
    """No two files give a key the same value. At least 4 files have 3 of 5 keys each, so `COMMON` files share a key."""
    names = sorted(rng.sample(["backup", "mail", "printer", "scanner", "search", "web"], rng.randint(4, 6)))
    values = {key: rng.sample(range(low, high + 1), len(names)) for key, (low, high) in SETTINGS.items()}
    made: list[Setting] = []
    for number, name in enumerate(names):
        keys = sorted(rng.sample(list(SETTINGS), rng.randint(3, 4)))
        setting = Setting(f"settings/{name}.ini", {key: values[key][number] for key in keys})
        lines = "".join(f"{key} = {value}\n" for key, value in setting.values.items())
        tree[setting.path] = f"[{name}]\n{lines}"
        made.append(setting)
    return tuple(made)
