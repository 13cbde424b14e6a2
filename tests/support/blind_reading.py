"""An adversary for questions over a library: opens what is in reach, and guesses by the type of the answer.

It follows no relation. From training questions in similar words it learns what answers look like, and between which
words they stood in the article.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from random import Random

_NAME = re.compile(r"\b[A-Z]\w+(?: (?:& )?[A-Z]\w+)*")
_YEAR = re.compile(r"\b1\d{3}\b|\b20\d\d\b")

Search = Callable[[str], Awaitable[list[tuple[str, str]]]]
"""A query -> (document, title) of what is found."""
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
        self._openings = [_words(" ".join(one.prompt.split()[:4])) for one in train]

    async def answer(self, prompt: str, search: Search, read: Read, *, opens: int, guess: str) -> str:
        """Opens up to `opens` articles, breadth first from the one that the prompt names, and guesses.

        Args:
            guess: `last`, `first` or `any`: which candidate of the answer's type; `context`: between the words between
                which the answers of similar questions stood.
        """
        texts: list[str] = []
        known = {title: document for document, title in await search(prompt) if title in prompt}
        queue, seen = list(known), set(known)
        while queue and len(texts) < opens:
            text = await read(known[queue.pop(0)])
            texts.append(text)
            for name in dict.fromkeys(_NAME.findall(text)):
                if name in seen:
                    continue
                seen.add(name)
                found = {title: document for document, title in await search(name)}
                if name in found and self._is_wanted(prompt, name):
                    known[name] = found[name]
                    queue.append(name)
        return self._guess(prompt, texts, guess)

    def _is_wanted(self, prompt: str, name: str) -> bool:
        return name not in prompt

    def _guess(self, prompt: str, texts: Sequence[str], guess: str) -> str:
        words, opening = _words(prompt), _words(" ".join(prompt.split()[:4]))
        alike = sorted(
            range(len(self._train)),
            key=lambda it: (-_overlap(opening, self._openings[it]), -_overlap(words, self._words[it])),
        )[:25]
        answers = [self._train[it].answer for it in alike]
        if guess == "context":
            around = Counter(found for it in alike if (found := _around(self._train[it])) is not None)
            for (before, after), _ in around.most_common():
                for text in reversed(texts):
                    found = re.search(rf"{re.escape(before)}([\w& ]+?){re.escape(after)}", text)
                    if found and found[1] not in prompt:
                        return found[1]
        candidates = [found for text in texts for found in self._of_type(answers, text) if found not in prompt]
        if not candidates:
            return "unknown"
        return {"first": candidates[0], "last": candidates[-1]}.get(guess) or Random(prompt).choice(candidates)

    def _of_type(self, answers: Sequence[str], text: str) -> list[str]:
        if all(_YEAR.fullmatch(answer) for answer in answers[:5]):
            return _YEAR.findall(text)
        given = Counter(answers)
        words = set(one.answer for one in self._train if one.answer in given)
        seen = [word for word in sorted(words, key=text.find) if re.search(rf"\b{re.escape(word)}\b", text)]
        names = [
            name for name in _NAME.findall(text.partition("\n\n")[2]) if len(name.split()) == len(answers[0].split())
        ]
        return seen or names


def _around(one: Answered) -> tuple[str, str] | None:
    before, found, after = one.article.partition(one.answer)
    if not found:
        return None
    return " ".join(before.split(" ")[-3:]), after[:1] or "."


def _words(text: str) -> set[str]:
    return set(re.findall(r"[a-z]+", text.lower()))


def _overlap(one: set[str], other: set[str]) -> float:
    return len(one & other) / max(1, len(one | other))
