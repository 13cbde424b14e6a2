"""An adversary for word problems: formulas over the numbers of the prompt, fitted on the training prompts' answers.

It does not read what a problem asks. For a prompt it takes the training prompts that look alike, and tries the formulas
that give most of their answers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

_NUMBER = re.compile(r"\d+")
_FROM_START, _FROM_END = 5, 4
_BEST = 200
_SHAPES_OF_TWO: tuple[Callable[..., Any], ...] = (
    lambda a, b: a + b,
    lambda a, b: a - b,
    lambda a, b: a * b,
    lambda a, b: a / b,
)
_SHAPES_OF_THREE: tuple[Callable[..., Any], ...] = (
    lambda a, b, c: a * b + c,
    lambda a, b, c: a * b - c,
    lambda a, b, c: (a + b) * c,
    lambda a, b, c: (a - b) * c,
    lambda a, b, c: a * b * c,
    lambda a, b, c: a + b + c,
    lambda a, b, c: a + b - c,
    lambda a, b, c: a - b - c,
    lambda a, b, c: a * b / c,
    lambda a, b, c: (a + b) / c,
    lambda a, b, c: (a - b) / c,
    lambda a, b, c: a / b + c,
    lambda a, b, c: a / b - c,
    lambda a, b, c: a * b * (100 - c) / 100,
    lambda a, b, c: a * b * c / 100,
    lambda a, b, c: 2 * a * b - c,
    lambda a, b, c: a + a * b + 2 * c,
)
_SHAPES_OF_FOUR: tuple[Callable[..., Any], ...] = (
    lambda a, b, c, d: a * b + c * d,
    lambda a, b, c, d: a * b - c * d,
    lambda a, b, c, d: a * b * c - d,
    lambda a, b, c, d: a * b * c + d,
    lambda a, b, c, d: (a * b + c) * d,
    lambda a, b, c, d: (a * b - c) * d,
    lambda a, b, c, d: (a * b - c) / d,
    lambda a, b, c, d: a * b - c - d,
    lambda a, b, c, d: a * b * c * d,
    lambda a, b, c, d: (a + b) * c - d,
)
_SHAPES = ((2, _SHAPES_OF_TWO), (3, _SHAPES_OF_THREE), (4, _SHAPES_OF_FOUR))


@dataclass(frozen=True)
class Solved:
    """A training prompt, with the answer that its reward confirms."""

    prompt: str
    answer: int


class BlindFormulas:
    """Formulas by place in the text (first to fifth, last to fourth from the end) or by size, and constants.

    Args:
        train: What the adversary is fitted on.
    """

    def __init__(self, train: Sequence[Solved]) -> None:
        self._train = train
        self._hits = np.stack([self._values(one.prompt) == one.answer for one in train])
        self._counts = np.array([len(numbers_in(one.prompt)) for one in train])
        self._words = [words_in(one.prompt) for one in train]
        self._asked = [words_in(question_of(one.prompt)) for one in train]
        self._constants = [answer for answer, _ in Counter(one.answer for one in train).most_common(4)]

    def guesses(self, prompt: str, selector: str, count: int) -> list[int]:
        """The results of the best formulas for this prompt, at most `count` distinct ones.

        Args:
            selector: Which training prompts are alike: `all`, `count` (of numbers), `words`, `asked` (the words of the
                question); or `constants`, which takes the commonest answers; or `roles`, which applies the formulas of
                similar training prompts to the numbers that have similar words around them.
        """
        if selector == "constants":
            return self._constants[:count]
        if selector == "roles":
            return self._by_roles(prompt)[:count]
        values, alike = self._values(prompt), self._alike(prompt, selector)
        weights = self._hits[alike].mean(axis=0)
        weights[~(np.isfinite(values) & (values > 0) & (values == np.floor(values)))] = -1
        found: dict[int, None] = {}
        best = np.argpartition(-weights, _BEST)[:_BEST]
        for index in best[np.argsort(-weights[best], kind="stable")]:
            if len(found) == count or weights[index] < 0:
                break
            found.setdefault(int(values[index]))
        return list(found)

    def _alike(self, prompt: str, selector: str) -> list[int]:
        if selector == "all":
            return list(range(len(self._train)))
        if selector == "count":
            distance = np.abs(self._counts - len(numbers_in(prompt)))
            return np.flatnonzero(distance == distance.min()).tolist()
        words, pool = (
            (words_in(question_of(prompt)), self._asked) if selector == "asked" else (words_in(prompt), self._words)
        )
        return sorted(range(len(pool)), key=lambda index: -_overlap(words, pool[index]))[:12]

    def _by_roles(self, prompt: str) -> list[int]:
        """Results of similar prompts' formulas over the numbers that have the most similar words around them."""
        found: dict[int, None] = {}
        numbers, contexts = numbers_in(prompt), contexts_in(prompt)
        for index in self._alike(prompt, "words"):
            one = self._train[index]
            theirs, around = numbers_in(one.prompt), contexts_in(one.prompt)
            nearest = [max(range(len(numbers)), key=lambda it: _overlap(context, contexts[it])) for context in around]
            mapped = np.array([numbers[it] for it in nearest], dtype=float)
            values = _evaluated(mapped[: len(theirs)])
            for hit in np.flatnonzero(_evaluated(np.array(theirs, dtype=float)) == one.answer)[:3]:
                if np.isfinite(values[hit]) and values[hit] > 0 and values[hit] == int(values[hit]):
                    found.setdefault(int(values[hit]))
        return list(found)

    def _values(self, prompt: str) -> np.ndarray[Any, Any]:
        numbers = numbers_in(prompt)
        return np.concatenate([_evaluated(_places(numbers)), _evaluated(_places(sorted(numbers)))])


def _places(numbers: list[int]) -> np.ndarray[Any, Any]:
    first = [*numbers[:_FROM_START], *[np.nan] * _FROM_START][:_FROM_START]
    last = [*numbers[::-1][:_FROM_END], *[np.nan] * _FROM_END][:_FROM_END]
    return np.array([*first, *last], dtype=float)


def _evaluated(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The value of each shape over each choice of numbers, in one array; formulas of a number alone included."""
    made = [values]
    with np.errstate(all="ignore"):
        for size, shapes in _SHAPES:
            grid = [values.reshape([-1 if axis == place else 1 for axis in range(size)]) for place in range(size)]
            whole = (len(values),) * size
            made += [np.broadcast_to(shape(*grid), whole).ravel() for shape in shapes]
    return np.concatenate(made)


def numbers_in(text: str) -> list[int]:
    return [int(found) for found in _NUMBER.findall(text)]


def words_in(text: str) -> set[str]:
    return set(re.findall(r"[a-z]+", text.lower()))


def contexts_in(text: str) -> list[set[str]]:
    """The three words before and after each number."""
    words = re.findall(r"[a-z]+|\d+", text.lower())
    return [{*words[max(0, at - 3) : at], *words[at + 1 : at + 4]} for at, word in enumerate(words) if word.isdigit()]


def question_of(prompt: str) -> str:
    return prompt[: prompt.rindex("?")].rpartition(". ")[2]


def _overlap(one: set[str], other: set[str]) -> float:
    return len(one & other) / max(1, len(one | other))
