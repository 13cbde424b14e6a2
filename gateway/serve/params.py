"""The parameters of a request of the lease extension, read with one message for each fault."""

from __future__ import annotations

from typing import Any, cast

_MOST_CHARACTERS = 256
_LARGEST = 1e300


class InvalidParams(Exception):
    """A parameter is missing, or not of its type; answered with -32602."""


class Params:
    """Reads parameters of one request. Every method raises `InvalidParams`."""

    def __init__(self, given: dict[str, Any]) -> None:
        self._given = given

    def has(self, name: str) -> bool:
        return name in self._given

    def text(self, name: str) -> str:
        value = self._given.get(name)
        if not isinstance(value, str) or not 0 < len(value) <= _MOST_CHARACTERS:
            raise InvalidParams(f"{name} must be a text of 1 to {_MOST_CHARACTERS} characters")
        return value

    def texts(self, name: str) -> list[str] | None:
        """A list of texts; None if it is missing or null."""
        value = self._given.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(each, str) for each in cast("list[Any]", value)):
            raise InvalidParams(f"{name} must be a list of texts")
        return cast("list[str]", value)

    def integer(self, name: str) -> int:
        value = self._given.get(name)
        # JSON's true and false are integers to Python.
        if not isinstance(value, int) or isinstance(value, bool):
            raise InvalidParams(f"{name} must be an integer")
        return value

    def flag(self, name: str) -> bool:
        value = self._given.get(name, False)
        if not isinstance(value, bool):
            raise InvalidParams(f"{name} must be true or false")
        return value

    def number(self, name: str, *, least: float, most: float) -> float:
        """A number, brought between `least` and `most`; `most` where it is missing."""
        value = self._given.get(name, most)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidParams(f"{name} must be a number")
        # Python reads NaN and Infinity as JSON, and 1e999 as infinite.
        if not -_LARGEST < value < _LARGEST:
            raise InvalidParams(f"{name} must be a finite number")
        return min(max(float(value), least), most)

    def object(self, name: str) -> dict[str, Any]:
        """An object; empty where it is missing."""
        value = self._given.get(name, {})
        if not isinstance(value, dict):
            raise InvalidParams(f"{name} must be an object")
        return cast("dict[str, Any]", value)
