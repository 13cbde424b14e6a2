"""Adversaries for questions over a library: they open what is in reach, and guess by the type of the answer.

None follows a relation. `BlindReader` learns from training questions in similar words what answers look like, and
between which words they stood in the article. `guess_by_kinds` is given what no policy knows: through which kinds of
articles the question leads, and all values of the answer's type.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from random import Random

_NAME = re.compile(r"\b[A-Z]\w+(?: (?:& )?[A-Z]\w+)*")
_YEAR = re.compile(r"\b1\d{3}\b|\b20\d\d\b")

GUESSES = ("first", "last", "any", "context")
Hits = dict[str, tuple[str, str]]
"""(document, excerpt) by title."""
Search = Callable[[str], Awaitable[Hits]]
Read = Callable[[str], Awaitable[str]]


@dataclass(frozen=True)
class Answered:
    """A training question, its answer, and the article that stated it."""

    prompt: str
    answer: str
    article: str


class BlindReader:
    def __init__(self, train: Sequence[Answered]) -> None:
        self._train = train
        self._words = [_words(one.prompt) for one in train]
        self._openings = [_words(_opening(one.prompt)) for one in train]

    async def read(self, prompt: str, search: Search, read: Read, *, opens: int) -> list[str]:
        """Opens up to `opens` articles, breadth first from the one that the prompt names, and returns their texts."""
        texts: list[str] = []
        queue = [document for title, (document, _) in (await search(prompt)).items() if title in prompt]
        seen = set(queue)
        while queue and len(texts) < opens:
            texts.append(await read(queue.pop(0)))
            for document, _ in await mentioned(texts[-1], search):
                if document not in seen:
                    seen.add(document)
                    queue.append(document)
        return texts

    def guess(self, prompt: str, texts: Sequence[str], guess: str) -> str:
        """The answer by one of `GUESSES`.

        `first`, `last` and `any` choose among what is of the answer's type; `context` takes what is between the words
        between which the answers of similar questions were.
        """
        words, opening = _words(prompt), _words(_opening(prompt))
        order = [
            (-_overlap(opening, theirs), -_overlap(words, self._words[index]), index)
            for index, theirs in enumerate(self._openings)
        ]
        alike = [self._train[index] for _, _, index in sorted(order)[:25]]
        if guess == "context":
            for (before, after), _ in Counter(map(_around, alike)).most_common():
                for text in reversed(texts):
                    found = re.search(rf"{re.escape(before)}([\w& ]+?){re.escape(after)}", text)
                    if found and found[1] not in prompt:
                        return found[1]
        given = [one.answer for one in alike]
        candidates = [found for text in texts for found in _of_type(given, text) if found not in prompt]
        if not candidates:
            return "unknown"
        return {"first": candidates[0], "last": candidates[-1]}.get(guess) or Random(prompt).choice(candidates)


async def guess_by_kinds(
    prompt: str, path: Sequence[str], values: Collection[str], search: Search, read: Read, *, width: int
) -> str:
    """Follows up to `width` mentions of the right kind from each article, and guesses one of the values it read last.

    Args:
        path: Words of the excerpts of the articles to pass through, without the first.
        values: What the answer can be.
    """
    level = [document for title, (document, _) in (await search(prompt)).items() if title in prompt]
    texts = [await read(document) for document in level]
    for kind in path:
        found = [document for text in texts for document, excerpt in await mentioned(text, search) if kind in excerpt]
        level = Random(prompt).sample(sorted(set(found)), min(width, len(set(found))))
        texts = [await read(document) for document in level]
    candidates = [value for value in sorted(values) for text in texts if value in text.partition("\n\n")[2]]
    return Random(prompt).choice(candidates) if candidates else "unknown"


async def mentioned(text: str, search: Search) -> list[tuple[str, str]]:
    """(document, excerpt) of the articles about names in the text, its own title not counted."""
    title, _, body = text.partition("\n\n")
    names = [name for name in dict.fromkeys(_NAME.findall(body)) if name != title]
    return [found[name] for name in names if name in (found := await search(name))]


def _of_type(answers: Sequence[str], text: str) -> list[str]:
    """Parts of the text that look like the answers: years, the same words, or names of as many words."""
    if all(_YEAR.fullmatch(answer) for answer in answers[:5]):
        return _YEAR.findall(text)
    body = text.partition("\n\n")[2]
    seen = [word for word in set(answers) if re.search(rf"\b{re.escape(word)}\b", body)]
    return seen or [name for name in _NAME.findall(body) if len(name.split()) == len(answers[0].split())]


def _around(one: Answered) -> tuple[str, str]:
    before, _, after = one.article.partition(one.answer)
    return " ".join(before.split(" ")[-3:]), after[:1] or "."


def _opening(prompt: str) -> str:
    return " ".join(prompt.split()[:4])


def _words(text: str) -> set[str]:
    return set(re.findall(r"[a-z]+", text.lower()))


def _overlap(one: set[str], other: set[str]) -> float:
    return len(one & other) / max(1, len(one | other))
