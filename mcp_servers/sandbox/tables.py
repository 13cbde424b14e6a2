"""Problems about squares of numbers, ledgers and spans."""

from __future__ import annotations

import string
from random import Random
from typing import Any

from mcp_servers.sandbox.steps import Family, Step


def _grid(rng: Random) -> list[list[int]]:
    size = rng.randint(3, 6)
    return [[rng.randint(0, 60) for _ in range(size)] for _ in range(size)]


def _ledger(rng: Random) -> list[list[Any]]:
    names = rng.sample(string.ascii_uppercase, 5)
    return [[rng.choice(names), rng.randint(-40, 90)] for _ in range(rng.randint(10, 18))]


def _spans(rng: Random) -> list[list[int]]:
    starts = [rng.randint(0, 200) for _ in range(rng.randint(6, 12))]
    return [[start, start + rng.randint(1, 25)] for start in starts]


GRIDS = Family(
    name="grids",
    argument="grid",
    opening="It takes a square of integers as a list of rows; each step makes a new square, and the last one the "
    "result:",
    before="it = [list(row) for row in grid]",
    middle=(
        Step("Turn the square by 90 degrees clockwise.", "it = [list(row) for row in zip(*it[::-1])]"),
        Step("Reverse each row.", "it = [row[::-1] for row in it]"),
        Step("Swap rows and columns (transpose).", "it = [list(row) for row in zip(*it)]"),
        Step(
            "Move each row r (from 0) r times {k} places to the right; what leaves comes in on the left.",
            "n = len(it)\nit = [[row[(c - r * {k}) % n] for c in range(n)] for r, row in enumerate(it)]",
            1,
            4,
        ),
        Step(
            "Add {k} times the row number (from 0) to each number.",
            "it = [[x + {k} * r for x in row] for r, row in enumerate(it)]",
        ),
        Step(
            "Set the numbers greater than {k} to 0.", "it = [[0 if x > {k} else x for x in row] for row in it]", 20, 45
        ),
        Step(
            "Sort each column, smallest on top.",
            "it = [list(row) for row in zip(*(sorted(column) for column in zip(*it)))]",
        ),
    ),
    last=(
        Step("Return the list of the sums of the rows.", "return [sum(row) for row in it]", 0, 0),
        Step(
            "Return the list of the greatest number of each column.",
            "return [max(column) for column in zip(*it)]",
            0,
            0,
        ),
        Step(
            "Return the numbers of the diagonal from top left to bottom right, as a list.",
            "return [row[i] for i, row in enumerate(it)]",
            0,
            0,
        ),
        Step(
            "Return the sum of the numbers on the border.",
            "n = len(it)\nreturn sum(x for r, row in enumerate(it) for c, x in enumerate(row) if r in (0, n - 1) "
            "or c in (0, n - 1))",
            0,
            0,
        ),
        Step(
            "Read the square row by row and return the numbers at the positions that are divisible by {k}, "
            "counted from 1, as a list.",
            "return [x for row in it for x in row][{k} - 1::{k}]",
            2,
            4,
        ),
        Step(
            "Return the rows read like a snake as one list: the first from left to right, the next from right to "
            "left, and so on.",
            "return [x for r, row in enumerate(it) for x in (row[::-1] if r % 2 else row)]",
            0,
            0,
        ),
    ),
    draw=_grid,
)
LEDGERS = Family(
    name="ledgers",
    argument="entries",
    opening="It takes a list of entries, each a list of a name and an amount; each step makes a new list of entries, "
    "and the last one the result:",
    before="it = [list(entry) for entry in entries]",
    middle=(
        Step("Drop the entries with an amount below {k}.", "it = [[n, a] for n, a in it if a >= {k}]", -20, 10),
        Step(
            "Keep only the first {k} entries of each name.",
            "seen = {{}}\nkept = []\nfor n, a in it:\n    seen[n] = seen.get(n, 0) + 1\n    if seen[n] <= {k}:\n"
            "        kept.append([n, a])\nit = kept",
            2,
            3,
        ),
        Step(
            "Raise each amount to the next multiple of {k}, if it is none.",
            "it = [[n, -(-a // {k}) * {k}] for n, a in it]",
            3,
            12,
        ),
        Step(
            "Add to each amount {k} times the number of entries of other names before it.",
            "it = [[n, a + {k} * sum(m != n for m, _ in it[:i])] for i, (n, a) in enumerate(it)]",
            2,
            6,
        ),
        Step(
            "Join entries of the same name that follow each other to one with the sum of their amounts.",
            "kept = []\nfor n, a in it:\n    if kept and kept[-1][0] == n:\n        kept[-1][1] += a\n    else:\n"
            "        kept.append([n, a])\nit = kept",
        ),
        Step(
            "Change the sign of the amounts at the positions that are divisible by {k}, counted from 1.",
            "it = [[n, -a if i % {k} == 0 else a] for i, (n, a) in enumerate(it, 1)]",
            2,
            4,
        ),
    ),
    last=(
        Step(
            "Return the total of each name as a list of [name, total], sorted by name.",
            "totals = {{}}\nfor n, a in it:\n    totals[n] = totals.get(n, 0) + a\n"
            "return [[n, totals[n]] for n in sorted(totals)]",
            0,
            0,
        ),
        Step(
            "Return the balances after each entry, the first being its amount, as a list.",
            "return [sum(a for _, a in it[: i + 1]) for i in range(len(it))]",
            0,
            0,
        ),
        Step(
            "Return the {k} entries with the greatest amounts as [name, amount], the greatest first, equal ones "
            "by name.",
            "return sorted(it, key=lambda entry: (-entry[1], entry[0]))[:{k}]",
            2,
            4,
        ),
        Step(
            "Return the names, each once, in the order of their last entry.",
            "return list(dict.fromkeys(n for n, _ in reversed(it)))[::-1]",
            0,
            0,
        ),
    ),
    draw=_ledger,
)
SPANS = Family(
    name="spans",
    argument="spans",
    opening="It takes a list of spans [start, end] of integers, start before end; each step makes a new list of spans, "
    "and the last one the result:",
    before="it = [list(span) for span in spans]",
    middle=(
        Step("Drop the spans shorter than {k}.", "it = [[a, b] for a, b in it if b - a >= {k}]"),
        Step("Make each span end {k} later.", "it = [[a, b + {k}] for a, b in it]", 2, 12),
        Step(
            "Merge spans that overlap, touch, or have a gap of at most {k} between them; sort them by start.",
            "merged = []\nfor a, b in sorted(it):\n    if merged and a - merged[-1][1] <= {k}:\n"
            "        merged[-1][1] = max(b, merged[-1][1])\n    else:\n        merged.append([a, b])\nit = merged",
            1,
            9,
        ),
        Step(
            "Cut spans longer than {k} into pieces: the first of length {k}, and so on; the last may be shorter.",
            "it = [[s, min(s + {k}, b)] for a, b in it for s in range(a, b, {k})]",
            8,
            15,
        ),
        Step(
            "Move every second span (the 2nd, 4th, ...) {k} to the left.",
            "it = [[a - {k}, b - {k}] if i % 2 else [a, b] for i, (a, b) in enumerate(it)]",
            3,
            30,
        ),
    ),
    last=(
        Step("Return the spans sorted by start, equal ones by end.", "return sorted(it)", 0, 0),
        Step("Return the list of the spans' lengths.", "return [b - a for a, b in it]", 0, 0),
        Step(
            "Return how many spans each span overlaps (shares more than an end with), itself not counted, as a list.",
            "return [sum(a < d and c < b for j, (c, d) in enumerate(it) if j != i) for i, (a, b) in enumerate(it)]",
            0,
            0,
        ),
        Step(
            "Return the number of integers from 0 to 250 that lie in a span (ends included).",
            "return sum(any(a <= x <= b for a, b in it) for x in range(251))",
            0,
            0,
        ),
    ),
    draw=_spans,
)
