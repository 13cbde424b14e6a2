"""From places in a completion's text to the ids that spell them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

Range = tuple[int, int]
"""`[begin, end)`."""


def token_ranges(
    ids: Sequence[int],
    text: str,
    ranges: Sequence[Range],
    *,
    decode: Callable[[Sequence[int]], str],
    token_of: Callable[[str], int | None],
) -> tuple[Range, ...]:
    """The ids that spell these ranges of `text`, which is what all of `ids` decode to.

    A token that spells a part of a range belongs to it; one that spells a part of two belongs to the first. What a
    marker is spelled with, one token or several, alone or merged with its neighbours, is found by decoding: about
    once for each range where it is a token of its own, else as often as a search takes.

    Args:
        ranges: characters, in order and apart. Each begins with a marker or at 0, and ends with one or with the text.
        token_of: the token, if there is one, that is this marker alone.
    """
    found: list[Range] = []
    done = 0
    for start, end in ranges:
        begin = 0
        if start:
            marker = token_of(text[start : text.find(">", start) + 1])
            at = _index(ids, marker, done)
            if at is None or decode(ids[:at]) != text[:start]:
                at = _spelling(ids, text[: start + 1], decode) - 1
            begin = max(done, at)
        stop = len(ids)
        if end < len(text):
            marker = token_of(text[text.rfind("<", start, end) : end])
            at = _index(ids, marker, begin)
            if at is None or decode(ids[: at + 1]) != text[:end]:
                at = _spelling(ids, text[:end], decode) - 1
            stop = at + 1
        found.append((begin, stop))
        done = stop
    return tuple(found)


def _index(ids: Sequence[int], token: int | None, start: int) -> int | None:
    """Where the token comes next."""
    return next((at for at in range(start, len(ids)) if ids[at] == token), None) if token is not None else None


def _spelling(ids: Sequence[int], text: str, decode: Callable[[Sequence[int]], str]) -> int:
    """How many ids it takes to spell the beginning `text`, which ends in a whole character."""
    return bisect_left(range(len(ids)), True, key=lambda count: decode(ids[:count]).startswith(text))
