"""Where two JSON values differ: answers of a world and what was recorded, arguments, observations, definitions.

Numbers are compared by value, true is not 1, and the order of keys does not count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, cast

from mcp_rollout.gateway.types import canonical_json

_SHOWN = 60
"""Characters of a value that are quoted."""
_BEFORE = 20
"""Those of them that precede the first difference, where a value is longer."""
_ABSENT = object()


@dataclass(frozen=True, slots=True)
class Difference:
    """One place with another value in each of two values."""

    path: str
    """Where it is, list items by index and by name if they have one: `[0 (stat)].content`. Empty: the value itself."""
    names: tuple[str, ...]
    """The fields on the way to it."""
    before: Any
    now: Any

    @property
    def shown(self) -> tuple[str, str, str]:
        """The place, and the two values as JSON, cut around the first character that differs."""
        if isinstance(self.before, str) and isinstance(self.now, str):
            # Cut before they are quoted, so that the position is one in the text itself.
            at, *texts = excerpts(self.before, self.now)
            before, now = map(canonical_json, texts)
        else:
            at, before, now = excerpts(_text(self.before), _text(self.now))
        return (self.path if at is None else f"{self.path} at character {at}"), before, now

    def __str__(self) -> str:
        where, before, now = self.shown
        return f"{where}: {before} became {now}"


def differences(before: Any, now: Any, path: str = "", names: tuple[str, ...] = ()) -> Iterator[Difference]:
    """The places where two values differ, in order. May raise RecursionError, as the parser of JSON may."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        one, other = cast("Mapping[Any, Any]", before), cast("Mapping[Any, Any]", now)
        for name in dict.fromkeys((*one, *other)):
            below = f"{path}.{name}" if path else str(name)
            yield from differences(one.get(name, _ABSENT), other.get(name, _ABSENT), below, (*names, str(name)))
    elif isinstance(before, list) and isinstance(now, list):
        pairs = zip_longest(cast("list[Any]", before), cast("list[Any]", now), fillvalue=_ABSENT)
        for number, (first, second) in enumerate(pairs):
            yield from differences(first, second, f"{path}[{_place(number, first, second)}]", names)
    elif isinstance(before, bool) or isinstance(now, bool):
        if before is not now:
            yield Difference(path, names, before, now)
    elif before != now and not (before != before and now != now):  # two NaN are equal
        yield Difference(path, names, before, now)


def _place(number: int, *values: Any) -> str:
    """Where a value stands in a list, with its name: that of the tool whose result it is."""
    names = (cast("Mapping[Any, Any]", value).get("name") for value in values if isinstance(value, Mapping))
    name = next((name for name in names if isinstance(name, str)), None)
    return str(number) if name is None else f"{number} ({name[:_SHOWN]})"


def excerpts(before: str, now: str) -> tuple[int | None, str, str]:
    """Two texts as they are, or the same part of both from shortly before the first character that differs.

    Returns:
        The position of this character from 0, None if the texts are whole, and the two texts.
    """
    if max(len(before), len(now)) <= _SHOWN:
        return None, before, now
    at = shared_beginning(before, now)
    start = max(0, at - _BEFORE)
    return at, _part(before, start), _part(now, start)


def shared_beginning(one: Sequence[object], other: Sequence[object]) -> int:
    """How many elements, or characters, two sequences have in common before the first that differs."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (mine, its) in pairs if mine != its), min(len(one), len(other)))


def _part(text: str, start: int) -> str:
    end = start + _SHOWN
    return f"{'...' if start else ''}{text[start:end]}{'...' if end < len(text) else ''}"


def _text(value: Any) -> str:
    return "absent" if value is _ABSENT else canonical_json(value)
