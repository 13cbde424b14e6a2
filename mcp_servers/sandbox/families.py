"""The families of problems: numbers, words, squares of numbers, ledgers and spans."""

from __future__ import annotations

import string
from random import Random
from typing import Any

from mcp_rollout.mcp_servers.sandbox.steps import Family, Step, fixed


def _numbers(rng: Random) -> list[int]:
    return [rng.randint(-60, 99) for _ in range(rng.randint(8, 18))]


def _text(rng: Random) -> str:
    letters = "aabcdeeefghiiklmnoopqrstuuvwxyz"
    return " ".join("".join(rng.choices(letters, k=rng.randint(2, 9))) for _ in range(rng.randint(6, 12)))


def _grid(rng: Random) -> list[list[int]]:
    size = rng.randint(3, 6)
    return [[rng.randint(0, 60) for _ in range(size)] for _ in range(size)]


def _ledger(rng: Random) -> list[list[Any]]:
    names = rng.sample(string.ascii_uppercase, 5)
    return [[rng.choice(names), rng.randint(-40, 90)] for _ in range(rng.randint(10, 18))]


def _spans(rng: Random) -> list[list[int]]:
    starts = [rng.randint(0, 200) for _ in range(rng.randint(6, 12))]
    return [[start, start + rng.randint(1, 25)] for start in starts]


NUMBERS = Family(
    argument="numbers",
    opening="It takes a list of integers, of which each step makes a new list, and the last one the result:",
    before="it = list(numbers)",
    middle=(
        Step("Drop the numbers that are divisible by {k}.", "it = [x for x in it if x % {k} != 0]"),
        Step("Keep the numbers greater than {k}.", "it = [x for x in it if x > {k}]", (-30, 20)),
        Step("Replace each number x by its absolute difference from {k}.", "it = [abs(x - {k}) for x in it]", (5, 40)),
        Step("Multiply each number by its position, counted from {k}.", "it = [x * i for i, x in enumerate(it, {k})]"),
        Step(
            "Rotate the list to the left by {k} places.", "it = it[{k} % len(it):] + it[:{k} % len(it)] if it else it"
        ),
        Step(
            "Remove the numbers at the positions that are divisible by {k}, counted from 1.",
            "it = [x for i, x in enumerate(it, 1) if i % {k}]",
            (2, 4),
        ),
        Step(
            "Replace each number by the sum of itself and all numbers before it.",
            "it = [sum(it[: i + 1]) for i in range(len(it))]",
        ),
        Step(
            "Replace each number x by the remainder of x * x divided by {k} (as Python's %).",
            "it = [x * x % {k} for x in it]",
            (11, 97),
        ),
        Step(
            "Reverse each block of {k} numbers; the last block may be shorter.",
            "it = [x for i in range(0, len(it), {k}) for x in reversed(it[i:i + {k}])]",
            (2, 5),
        ),
    ),
    last=(
        fixed("Return the list.", "return it"),
        Step("Return the sum of the {k} greatest numbers.", "return sum(sorted(it, reverse=True)[:{k}])", (2, 4)),
        Step(
            "Return the greatest sum of {k} numbers that stand next to each other, or of all if there are fewer.",
            "return max((sum(it[i:i + {k}]) for i in range(max(1, len(it) - {k} + 1))), default=0)",
            (2, 4),
        ),
        fixed(
            "Return the list of the differences of each number and the one before it.",
            "return [b - a for a, b in zip(it, it[1:])]",
        ),
        fixed(
            "Return the sum, each second number (the 2nd, 4th, ...) subtracted instead of added.",
            "return sum(it[::2]) - sum(it[1::2])",
        ),
        fixed(
            "Return the numbers sorted by their last decimal digit (of the absolute value), equal ones by value.",
            "return sorted(it, key=lambda x: (abs(x) % 10, x))",
        ),
    ),
    draw=_numbers,
)
WORDS = Family(
    argument="text",
    opening="It takes a text of lower-case words with single spaces. Split it into its words; each step changes the "
    "list of words, and the last one makes the result:",
    before="it = text.split()",
    middle=(
        Step("Keep the words of at least {k} letters.", "it = [w for w in it if len(w) >= {k}]", (3, 5)),
        Step("Drop the words that begin with a vowel (a, e, i, o, u).", "it = [w for w in it if w[0] not in 'aeiou']"),
        Step(
            "Reverse each word of more than {k} letters.", "it = [w[::-1] if len(w) > {k} else w for w in it]", (2, 5)
        ),
        Step(
            "Move each letter {k} places on in the alphabet; after z comes a.",
            "it = [''.join(chr((ord(c) - 97 + {k}) % 26 + 97) for c in w) for w in it]",
        ),
        Step(
            "Turn the first and the last word around: each takes the other's place.",
            "if it:\n    it[0], it[-1] = it[-1], it[0]",
        ),
        Step("Write the last letter of each word {k} times.", "it = [w + w[-1] * ({k} - 1) for w in it]", (2, 4)),
        Step("Keep the first {k} letters of each word.", "it = [w[:{k}] for w in it]", (3, 6)),
        Step("Move the first {k} words to the end.", "it = it[{k}:] + it[:{k}]", (1, 4)),
        Step("Put the letters of each word in alphabetical order.", "it = [''.join(sorted(w)) for w in it]"),
    ),
    last=(
        fixed("Return the words joined by '-'.", "return '-'.join(it)"),
        fixed(
            "Return the list of words sorted by length, equal ones alphabetically.",
            "return sorted(it, key=lambda w: (len(w), w))",
        ),
        fixed("Return the text made of the last letters of the words.", "return ''.join(w[-1] for w in it)"),
        Step("Return the list of the words' lengths times {k}.", "return [len(w) * {k} for w in it]"),
        fixed(
            "Return the number of each letter in all words, as a list of 26 counts from a to z.",
            "return [''.join(it).count(chr(97 + i)) for i in range(26)]",
        ),
        Step(
            "Take the words at the positions that are divisible by {k}, counted from 1, and return them as a "
            "list in reverse order.",
            "return it[{k} - 1::{k}][::-1]",
            (2, 3),
        ),
    ),
    draw=_text,
)
GRIDS = Family(
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
            (1, 4),
        ),
        Step(
            "Add {k} times the row number (from 0) to each number.",
            "it = [[x + {k} * r for x in row] for r, row in enumerate(it)]",
        ),
        Step(
            "Set the numbers greater than {k} to 0.",
            "it = [[0 if x > {k} else x for x in row] for row in it]",
            (20, 45),
        ),
        Step(
            "Sort each column, smallest on top.",
            "it = [list(row) for row in zip(*(sorted(column) for column in zip(*it)))]",
        ),
    ),
    last=(
        fixed("Return the list of the sums of the rows.", "return [sum(row) for row in it]"),
        fixed("Return the list of the greatest number of each column.", "return [max(column) for column in zip(*it)]"),
        fixed(
            "Return the numbers of the diagonal from top left to bottom right, as a list.",
            "return [row[i] for i, row in enumerate(it)]",
        ),
        fixed(
            "Return the sum of the numbers on the border.",
            "n = len(it)\nreturn sum(x for r, row in enumerate(it) for c, x in enumerate(row) if r in (0, n - 1) "
            "or c in (0, n - 1))",
        ),
        Step(
            "Read the square row by row and return the numbers at the positions that are divisible by {k}, "
            "counted from 1, as a list.",
            "return [x for row in it for x in row][{k} - 1::{k}]",
            (2, 4),
        ),
        fixed(
            "Return the rows read like a snake as one list: the first from left to right, the next from right to "
            "left, and so on.",
            "return [x for r, row in enumerate(it) for x in (row[::-1] if r % 2 else row)]",
        ),
    ),
    draw=_grid,
)
LEDGERS = Family(
    argument="entries",
    opening="It takes a list of entries, each a list of a name and an amount; each step makes a new list of entries, "
    "and the last one the result:",
    before="it = [list(entry) for entry in entries]",
    middle=(
        Step("Drop the entries with an amount below {k}.", "it = [[n, a] for n, a in it if a >= {k}]", (-20, 10)),
        Step(
            "Keep only the first {k} entries of each name.",
            "seen = {{}}\nkept = []\nfor n, a in it:\n    seen[n] = seen.get(n, 0) + 1\n    if seen[n] <= {k}:\n"
            "        kept.append([n, a])\nit = kept",
            (2, 3),
        ),
        Step(
            "Raise each amount to the next multiple of {k}, if it is none.",
            "it = [[n, -(-a // {k}) * {k}] for n, a in it]",
            (3, 12),
        ),
        Step(
            "Add to each amount {k} times the number of entries of other names before it.",
            "it = [[n, a + {k} * sum(m != n for m, _ in it[:i])] for i, (n, a) in enumerate(it)]",
            (2, 6),
        ),
        Step(
            "Join entries of the same name that follow each other to one with the sum of their amounts.",
            "kept = []\nfor n, a in it:\n    if kept and kept[-1][0] == n:\n        kept[-1][1] += a\n    else:\n"
            "        kept.append([n, a])\nit = kept",
        ),
        Step(
            "Change the sign of the amounts at the positions that are divisible by {k}, counted from 1.",
            "it = [[n, -a if i % {k} == 0 else a] for i, (n, a) in enumerate(it, 1)]",
            (2, 4),
        ),
    ),
    last=(
        fixed(
            "Return the total of each name as a list of [name, total], sorted by name.",
            "totals = {{}}\nfor n, a in it:\n    totals[n] = totals.get(n, 0) + a\n"
            "return [[n, totals[n]] for n in sorted(totals)]",
        ),
        fixed(
            "Return the balances after each entry, the first being its amount, as a list.",
            "return [sum(a for _, a in it[: i + 1]) for i in range(len(it))]",
        ),
        Step(
            "Return the {k} entries with the greatest amounts as [name, amount], the greatest first, equal ones "
            "by name.",
            "return sorted(it, key=lambda entry: (-entry[1], entry[0]))[:{k}]",
            (2, 4),
        ),
        fixed(
            "Return the names, each once, in the order of their last entry.",
            "return list(dict.fromkeys(n for n, _ in reversed(it)))[::-1]",
        ),
    ),
    draw=_ledger,
)
SPANS = Family(
    argument="spans",
    opening="It takes a list of spans [start, end] of integers, start before end; each step makes a new list of spans, "
    "and the last one the result:",
    before="it = [list(span) for span in spans]",
    middle=(
        Step("Drop the spans shorter than {k}.", "it = [[a, b] for a, b in it if b - a >= {k}]"),
        Step("Make each span end {k} later.", "it = [[a, b + {k}] for a, b in it]", (2, 12)),
        Step(
            "Merge spans that overlap, touch, or have a gap of at most {k} between them; sort them by start.",
            "merged = []\nfor a, b in sorted(it):\n    if merged and a - merged[-1][1] <= {k}:\n"
            "        merged[-1][1] = max(b, merged[-1][1])\n    else:\n        merged.append([a, b])\nit = merged",
            (1, 9),
        ),
        Step(
            "Cut spans longer than {k} into pieces: the first of length {k}, and so on; the last may be shorter.",
            "it = [[s, min(s + {k}, b)] for a, b in it for s in range(a, b, {k})]",
            (8, 15),
        ),
        Step(
            "Move every second span (the 2nd, 4th, ...) {k} to the left.",
            "it = [[a - {k}, b - {k}] if i % 2 else [a, b] for i, (a, b) in enumerate(it)]",
            (3, 30),
        ),
    ),
    last=(
        fixed("Return the spans sorted by start, equal ones by end.", "return sorted(it)"),
        fixed("Return the list of the spans' lengths.", "return [b - a for a, b in it]"),
        fixed(
            "Return how many spans each span overlaps (shares more than an end with), itself not counted, as a list.",
            "return [sum(a < d and c < b for j, (c, d) in enumerate(it) if j != i) for i, (a, b) in enumerate(it)]",
        ),
        fixed(
            "Return the number of integers from 0 to 250 that lie in a span (ends included).",
            "return sum(any(a <= x <= b for a, b in it) for x in range(251))",
        ),
    ),
    draw=_spans,
)
FAMILIES = (NUMBERS, WORDS, GRIDS, LEDGERS, SPANS)
