"""Variants of an expert's conversations, from which a small model learns to read instead of learning them by heart.

In each variant the order's number is that of another conversation, some days are other days, and some words of the
customer and of the order's item are invented. What the expert decides stays, and what it writes besides the values.
Invented words are random letters and invented days lie months later, so none of them is a held-out task's.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_lowercase

_NUMBER = re.compile(r"\bW\d+\b")
_DAY = re.compile(r"\b\d{4}-\d\d-\d\d\b")
_ITEM = re.compile(r'(?<="items":\[")[^"]*')
_WORD = re.compile(r"[A-Za-z]+")

INVENTED_SHARES = (0.0, 0.3, 0.7)
"""Shares of the customer's words that are invented; each variant draws one."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a conversation's text."""

    text: str
    sampled: bool
    """Whether the assistant wrote it."""


def order_numbers(conversations: Sequence[Sequence[Piece]]) -> list[str]:
    """Return the order number of each conversation."""
    return [match.group() for pieces in conversations if (match := _NUMBER.search(_text(pieces)))]


def vary(pieces: Sequence[Piece], numbers: Sequence[str], rng: random.Random) -> list[Piece]:
    """Return a variant of a conversation, whose first piece begins with the customer's message.

    Args:
        numbers: Order numbers to draw from.
    """
    customer, rest = pieces[0].text.split("<|im_end|>", 1)
    share = rng.choice(INVENTED_SHARES)
    customer = _WORD.sub(lambda word: _invented(rng) if rng.random() < share else word.group(), customer)
    text = _text(pieces)
    values = {number: rng.choice(numbers) for number in _NUMBER.findall(text)}
    values |= {day: _another_day(rng) if rng.random() < 0.6 else day for day in _DAY.findall(text)}
    if rng.random() < 0.5:
        values |= {item: _WORD.sub(lambda _: _invented(rng).title(), item) for item in _ITEM.findall(text)}
    known = re.compile("|".join(map(re.escape, values)) or r"\Z.")
    exchanged = [
        Piece(known.sub(lambda found: values[found.group()], piece.text), piece.sampled) for piece in pieces[1:]
    ]
    return [Piece(f"{customer}<|im_end|>{rest}", False), *exchanged]


def _text(pieces: Sequence[Piece]) -> str:
    # Without the customer's message, which names no value.
    return "".join(piece.text for piece in pieces[1:])


def _invented(rng: random.Random) -> str:
    return "".join(rng.choices(ascii_lowercase, k=rng.randint(1, 4)))


def _another_day(rng: random.Random) -> str:
    return f"2026-{rng.randint(5, 12):02d}-{rng.randint(1, 28):02d}"
