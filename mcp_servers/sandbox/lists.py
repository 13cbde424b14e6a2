"""Problems about numbers and words."""

from __future__ import annotations

from random import Random

from mcp_servers.sandbox.steps import Family, Step


def _numbers(rng: Random) -> list[int]:
    return [rng.randint(-60, 99) for _ in range(rng.randint(8, 18))]


def _text(rng: Random) -> str:
    letters = "aabcdeeefghiiklmnoopqrstuuvwxyz"
    return " ".join("".join(rng.choices(letters, k=rng.randint(2, 9))) for _ in range(rng.randint(6, 12)))


NUMBERS = Family(
    name="numbers",
    argument="numbers",
    opening="It takes a list of integers, of which each step makes a new list, and the last one the result:",
    before="it = list(numbers)",
    middle=(
        Step("Drop the numbers that are divisible by {k}.", "it = [x for x in it if x % {k} != 0]"),
        Step("Keep the numbers greater than {k}.", "it = [x for x in it if x > {k}]", -30, 20),
        Step("Replace each number x by its absolute difference from {k}.", "it = [abs(x - {k}) for x in it]", 5, 40),
        Step("Multiply each number by its position, counted from {k}.", "it = [x * i for i, x in enumerate(it, {k})]"),
        Step(
            "Rotate the list to the left by {k} places.", "it = it[{k} % len(it):] + it[:{k} % len(it)] if it else it"
        ),
        Step(
            "Remove the numbers at the positions that are divisible by {k}, counted from 1.",
            "it = [x for i, x in enumerate(it, 1) if i % {k}]",
            2,
            4,
        ),
        Step(
            "Replace each number by the sum of itself and all numbers before it.",
            "it = [sum(it[: i + 1]) for i in range(len(it))]",
        ),
        Step(
            "Replace each number x by the remainder of x * x divided by {k} (as Python's %).",
            "it = [x * x % {k} for x in it]",
            11,
            97,
        ),
        Step(
            "Reverse each block of {k} numbers; the last block may be shorter.",
            "it = [x for i in range(0, len(it), {k}) for x in reversed(it[i:i + {k}])]",
            2,
            5,
        ),
    ),
    last=(
        Step("Return the list.", "return it", 0, 0),
        Step("Return the sum of the {k} greatest numbers.", "return sum(sorted(it, reverse=True)[:{k}])", 2, 4),
        Step(
            "Return the greatest sum of {k} numbers that stand next to each other, or of all if there are fewer.",
            "return max((sum(it[i:i + {k}]) for i in range(max(1, len(it) - {k} + 1))), default=0)",
            2,
            4,
        ),
        Step(
            "Return the list of the differences of each number and the one before it.",
            "return [b - a for a, b in zip(it, it[1:])]",
            0,
            0,
        ),
        Step(
            "Return the sum, each second number (the 2nd, 4th, ...) subtracted instead of added.",
            "return sum(it[::2]) - sum(it[1::2])",
            0,
            0,
        ),
        Step(
            "Return the numbers sorted by their last decimal digit (of the absolute value), equal ones by value.",
            "return sorted(it, key=lambda x: (abs(x) % 10, x))",
            0,
            0,
        ),
    ),
    draw=_numbers,
)
WORDS = Family(
    name="words",
    argument="text",
    opening="It takes a text of lower-case words with single spaces. Split it into its words; each step changes the "
    "list of words, and the last one makes the result:",
    before="it = text.split()",
    middle=(
        Step("Keep the words of at least {k} letters.", "it = [w for w in it if len(w) >= {k}]", 3, 5),
        Step("Drop the words that begin with a vowel (a, e, i, o, u).", "it = [w for w in it if w[0] not in 'aeiou']"),
        Step("Reverse each word of more than {k} letters.", "it = [w[::-1] if len(w) > {k} else w for w in it]", 2, 5),
        Step(
            "Move each letter {k} places on in the alphabet; after z comes a.",
            "it = [''.join(chr((ord(c) - 97 + {k}) % 26 + 97) for c in w) for w in it]",
        ),
        Step(
            "Turn the first and the last word around: each takes the other's place.",
            "if it:\n    it[0], it[-1] = it[-1], it[0]",
        ),
        Step("Write the last letter of each word {k} times.", "it = [w + w[-1] * ({k} - 1) for w in it]", 2, 4),
        Step("Keep the first {k} letters of each word.", "it = [w[:{k}] for w in it]", 3, 6),
        Step("Move the first {k} words to the end.", "it = it[{k}:] + it[:{k}]", 1, 4),
        Step("Put the letters of each word in alphabetical order.", "it = [''.join(sorted(w)) for w in it]"),
    ),
    last=(
        Step("Return the words joined by '-'.", "return '-'.join(it)", 0, 0),
        Step(
            "Return the list of words sorted by length, equal ones alphabetically.",
            "return sorted(it, key=lambda w: (len(w), w))",
            0,
            0,
        ),
        Step("Return the text made of the last letters of the words.", "return ''.join(w[-1] for w in it)", 0, 0),
        Step("Return the list of the words' lengths times {k}.", "return [len(w) * {k} for w in it]"),
        Step(
            "Return the number of each letter in all words, as a list of 26 counts from a to z.",
            "return [''.join(it).count(chr(97 + i)) for i in range(26)]",
            0,
            0,
        ),
        Step(
            "Take the words at the positions that are divisible by {k}, counted from 1, and return them as a "
            "list in reverse order.",
            "return it[{k} - 1::{k}][::-1]",
            2,
            3,
        ),
    ),
    draw=_text,
)
