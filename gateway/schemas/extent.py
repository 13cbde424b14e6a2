"""How large a JSON value is, and the bounds on values, schemas and arguments. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

DEEPEST = 100
"""Maximum nesting of a value, or of a schema as a document."""
MOST_NESTED = 64
"""Maximum nesting of a call's arguments, so that messages which contain them still fit `DEEPEST`."""
MOST_VALUES = 100_000
"""Maximum JSON values and names in one schema."""
MOST_DIGITS = 4000
"""Maximum digits of an integer in a call's arguments: Python servers cannot read a message with one of over 4,300."""
MOST_BITS = (10**MOST_DIGITS - 1).bit_length()
_MOST_LONG = 50
"""Integers of `MOST_DIGITS` digits in a call's arguments, or as many digits: to write one takes 0.1 ms."""
_CHARACTERS = 64
"""Characters of a string whose comparison takes as long as one more value."""
_PLAIN = frozenset({bool, type(None)})
"""Types of values without parts and length."""
_BIG = 1 << 53
"""Integers from here on have no place of their own in a set, and the largest are read digit by digit."""
_WORD_BITS = 64
_BIG_STEPS, _BIG_BITS = 4, 222
"""Reading one takes as long as that many other values, and one for each square of so many bits."""
_type_of: Callable[[Any], Any] = type
_OBJECT: Any = Mapping
_ARRAY: Any = (list, tuple)


class TooDeep(ValueError):
    """A value is nested more than `DEEPEST` deep."""


class Extent(NamedTuple):
    """How large a JSON value is."""

    nodes: int
    """Number of values and names; a long string or integer counts for several."""
    characters: int
    depth: int
    """0 for a value without parts."""
    longest_bits: int
    """Bits of the longest integer of more than 53 bits, or a share of all of more than 64 bits; 0 if there are none."""


def measure(value: Any) -> Extent:
    """The extent of a JSON value, in time linear in it.

    Raises:
        TooDeep: it is nested more than `DEEPEST` deep.
        ValueError: an object has a name that is not a string, a string has a lone surrogate, or a number is not finite.
    """
    # Runs on every call, so it avoids type checks and function calls where possible.
    nodes = characters = depth = work = longest = together = 0
    level: list[Any] = [value]
    while True:
        nodes += len(level)
        below: list[Any] = []
        for each in level:
            kind = _type_of(each)
            if kind is str:
                characters += len(each) if each.isascii() else _length(each)
            elif kind is int:
                if not -_BIG < each < _BIG:
                    bits = each.bit_length()
                    longest, together = max(longest, bits), together + bits * (bits > _WORD_BITS)
                    work += _BIG_STEPS + (bits // _BIG_BITS) ** 2
            elif kind in _PLAIN:
                continue
            elif kind is float:
                if each - each != 0:  # infinite, or not a number
                    raise ValueError("a number is not finite, which JSON cannot write")
            elif kind is dict or isinstance(each, _OBJECT):
                for name in each:
                    if type(name) is not str and not isinstance(name, str):
                        raise ValueError("an object has a name that is not a string")
                    characters += len(name) if name.isascii() else _length(name)
                nodes += len(each)
                below += each.values()
            elif isinstance(each, _ARRAY):
                below += each
            elif isinstance(each, str):
                characters += _length(each)
        if not below:
            size = nodes + characters // _CHARACTERS + work
            return Extent(size, characters, depth, max(longest, together // _MOST_LONG))
        if depth == DEEPEST:
            raise TooDeep(f"nested more than {DEEPEST} deep")
        level, depth = below, depth + 1


def _length(text: str) -> int:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("a string has a lone surrogate, which is not text") from None
    return len(text)


def too_large(schema: Mapping[str, Any]) -> str:
    """Why a schema or a tool definition is too large to be used; empty if it is not."""
    try:
        extent = measure(schema)
    except TooDeep as error:
        return f"it is {error}"
    except ValueError as error:
        return str(error)
    return f"it has more than {MOST_VALUES} values in it" if extent.nodes > MOST_VALUES else ""
