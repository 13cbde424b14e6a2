"""PROMISES.md names, for each promise of the docs, a page and heading and a test that are there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
GUARD = re.compile(r"`((?:lab/)?tests/[\w/]+\.py)::(test_\w+)`(?: full)?")
PLACE = re.compile(r"`([\w/.]+)(?:#([\w-]+))?`")


class Row(NamedTuple):
    promise: str
    where: str
    guard: str


def rows() -> list[Row]:
    lines = [line for line in (ROOT / "tests" / "PROMISES.md").read_text().splitlines() if line.startswith("| ")]
    found = [Row(*map(str.strip, line.strip("| ").split(" | "))) for line in lines]
    return [row for row in found if row.promise != "promise"]


@cache
def names_in(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text()) if (ROOT / path).is_file() else ast.Module([], [])
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@cache
def headings_of(path: str) -> set[str]:
    text = re.sub(r"^```.*?^```", "", (ROOT / path).read_text(), flags=re.MULTILINE | re.DOTALL)
    plain = (re.sub(r"[^\w\s-]", "", line).strip().lower() for line in re.findall(r"^#+ (.*)", text, re.MULTILINE))
    return {re.sub(r"[-\s]+", "-", line) for line in plain}


def is_there(path: str, heading: str | None) -> bool:
    return (ROOT / path).is_file() and (heading is None or heading in headings_of(path))


def test_every_guard_exists() -> None:
    guards = [(row, GUARD.fullmatch(row.guard)) for row in rows() if not row.guard.startswith("none")]
    assert len(guards) > 400
    assert [row for row, named in guards if named is None or named[2] not in names_in(named[1])] == []


def test_every_page_and_heading_exists() -> None:
    places = [(row, PLACE.fullmatch(row.where)) for row in rows()]
    assert [row for row, place in places if place is None or not is_there(place[1], place[2])] == []


def test_no_promise_stands_twice_and_each_without_a_guard_says_why() -> None:
    promises = [row.promise for row in rows()]
    assert sorted(promises) == sorted(set(promises))
    assert [row for row in rows() if row.guard.startswith("none") and not row.guard.startswith("none: ")] == []
