"""Variants of an expert's conversations, from which a small model learns to read instead of learning them by heart.

In each variant the order's number is that of another conversation, some days are other days, some words of the customer
and of the order's item are invented, and the customer's words may be shuffled. What the expert decides stays, what it
writes besides the values, and the words that tell a customer's wish. Invented words end in random letters and invented
days lie months later, so none of them is a held-out task's.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from string import ascii_lowercase

from lab.worlds.shop.vocabulary import TELLING

_NUMBER = re.compile(r"\bW\d+\b")
_DAY = re.compile(r"\b\d{4}-\d\d-\d\d\b")
_ITEM = re.compile(r'(?<="items":\[")[^"]*')
_DETAILS = re.compile(r'(?<="user_id":")[^"]*|(?<="street":")[^"]*|(?<="city":")[^"]*|(?<="options":{)[^}]*')
_WORD = re.compile(r"[A-Za-z]+")
_WANTED = re.compile(r"\bThey want \w")
_TELLING = re.compile(rf"\b({'|'.join(word for words in TELLING.values() for word in words)})\b")
_NOTHING = re.compile(r"(?!)")

INVENTED_SHARES = (0.0, 0.3, 0.7)
"""Shares of the customer's words that are invented; each variant draws one."""
SHUFFLED_SHARE = 0.5
"""Share of variants in which the customer's words are shuffled, and some are left out."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a conversation's text."""

    text: str
    sampled: bool
    """Whether the assistant wrote it."""


Excerpt = Sequence[Piece]
"""Of a conversation: pieces that follow each other, of which the assistant read one and wrote the next."""


def order_numbers(conversations: Sequence[Sequence[Piece]]) -> list[str]:
    """Return the order number of each conversation."""
    # Not in the customer's message, which names no value.
    return [match.group() for pieces in conversations if (match := _NUMBER.search(_text(pieces[1:])))]


def vary(pieces: Sequence[Piece], numbers: Sequence[str], rng: random.Random) -> list[Piece]:
    """Return a variant of a conversation, whose first piece begins with the customer's message.

    Args:
        numbers: Order numbers to draw from.
    """
    customer, rest = pieces[0].text.split("<|im_end|>", 1)
    kept = _TELLING if _WANTED.search(pieces[1].text) else _NOTHING
    reworded = f"{_reword(customer, kept, rng)}<|im_end|>{rest}"
    return [Piece(reworded, False), *exchange_values(pieces[1:], numbers, rng)]


def exchange_values(pieces: Sequence[Piece], numbers: Sequence[str], rng: random.Random) -> list[Piece]:
    """Return the pieces with other order numbers, and with some other days and items. `numbers` as in `vary`."""
    text = _text(pieces)
    values = {number: rng.choice(numbers) for number in _NUMBER.findall(text)}
    values |= {day: _another_day(rng) if rng.random() < 0.6 else day for day in _DAY.findall(text)}
    if rng.random() < 0.5:
        values |= {item: _WORD.sub(lambda word: _invented(word.group(), rng), item) for item in _ITEM.findall(text)}
    if rng.random() < 0.5:
        values |= {part: _WORD.sub(lambda word: _invented(word.group(), rng), part) for part in _DETAILS.findall(text)}
    # The longest first, since one value may be a part of another.
    known = re.compile("|".join(map(re.escape, sorted(values, key=len, reverse=True))) or r"\Z.")
    return [Piece(known.sub(lambda found: values[found.group()], piece.text), piece.sampled) for piece in pieces]


def excerpts(conversations: Sequence[Sequence[Piece]]) -> list[Excerpt]:
    """Return what the assistant read just before it copied an order number or a day, and what it then wrote.

    There are as many with a day as without one: days are longer, and rarer.
    """
    pairs: list[Excerpt] = [(read, written) for pieces in conversations for read, written in pairwise(pieces[1:])]
    copied = [pair for pair in pairs if pair[1].sampled and _values(pair[0]) & _values(pair[1])]
    with_day = [pair for pair in copied if _DAY.search(pair[1].text)]
    without = [pair for pair in copied if not _DAY.search(pair[1].text)]
    count = min(len(with_day), len(without))
    return with_day[:count] + without[:count]


def beginnings(conversations: Sequence[Sequence[Piece]]) -> list[Excerpt]:
    """Return the customer's message and the two turns after it, of conversations in which the expert reads a wish."""
    return [pieces[:4] for pieces in conversations if _WANTED.search(pieces[1].text)]


def _values(piece: Piece) -> set[str]:
    return {*_NUMBER.findall(piece.text), *_DAY.findall(piece.text)}


def _text(pieces: Sequence[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def _reword(message: str, kept: re.Pattern[str], rng: random.Random) -> str:
    share = rng.choice(INVENTED_SHARES)

    def perhaps(word: re.Match[str]) -> str:
        is_invented = rng.random() < share and not kept.fullmatch(word.group())
        return _invented(word.group(), rng) if is_invented else word.group()

    message = _WORD.sub(perhaps, message)
    if rng.random() >= SHUFFLED_SHARE:
        return message
    words = message.split(" ")
    chosen = rng.sample(range(len(words)), rng.randint(len(words) // 3 + 1, len(words)))
    if left_out := [at for at, word in enumerate(words) if at not in chosen and kept.search(word)]:
        chosen = rng.sample(chosen + left_out, len(chosen) + len(left_out))
    return " ".join(words[at] for at in chosen)


def _invented(word: str, rng: random.Random) -> str:
    """A word that may begin like `word`: parts of words are tokens too, and tasks with other wordings have them."""
    return word[: rng.randint(0, len(word) - 1)] + "".join(rng.choices(ascii_lowercase, k=rng.randint(1, 4)))


def _another_day(rng: random.Random) -> str:
    return f"2026-{rng.randint(5, 12):02d}-{rng.randint(1, 28):02d}"
