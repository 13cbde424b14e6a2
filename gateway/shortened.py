"""Shorten JSON values: keep the beginning of everything, and mark where something is missing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

MOST_CHARACTERS = 8192
_NODE = 4
"""What a value that is not a string counts as, in characters."""
_DEEPEST = 30


def shortened(value: Any, most: int = MOST_CHARACTERS) -> Any:
    """A JSON value with about `most` characters in it; the same value where it has no more. Marks begin with `…`."""
    return _Shortening(most).cut(value, _DEEPEST)


def cut_text(text: str, most: int) -> str:
    """A text of `most` characters and a mark that says how many are missing."""
    return text if len(text) <= most else f"{text[:most]}…[{len(text) - most} characters cut]"


class _Shortening:
    def __init__(self, room: int) -> None:
        self._room = room

    def cut(self, value: Any, levels: int) -> Any:
        if isinstance(value, str):
            kept = cut_text(value, max(0, self._room))
            self._room -= len(value)
            return kept
        self._room -= _NODE
        if isinstance(value, Mapping):
            return self._members(cast("Mapping[str, Any]", value), levels)
        if isinstance(value, list):
            return self._items(cast("list[Any]", value), levels)
        return value

    def _members(self, members: Mapping[str, Any], levels: int) -> dict[str, Any]:
        kept: dict[str, Any] = {}
        for name, inner in members.items():
            if self._room <= 0 or not levels:
                return {**kept, "…": f"{len(members) - len(kept)} more"}
            self._room -= len(name)
            kept[cut_text(name, MOST_CHARACTERS)] = self.cut(inner, levels - 1)
        return kept

    def _items(self, items: list[Any], levels: int) -> list[Any]:
        kept: list[Any] = []
        for inner in items:
            if self._room <= 0 or not levels:
                return [*kept, f"…[{len(items) - len(kept)} more]"]
            kept.append(self.cut(inner, levels - 1))
        return kept
