"""Compare a text with what is expected: a final answer with its ground truth, or a tool's result with a check."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import Annotated, Any, cast

from pydantic import StringConstraints, TypeAdapter, ValidationError
from pydantic_core import SchemaError

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:[eE][+-]?\d{1,4})?")


class Match(StrEnum):
    """How a text is compared with the expected one."""

    TEXT = "text"
    """As numbers if both are, else as text without regard to case, spaces and punctuation around it."""
    EXACT = "exact"
    """Character by character, but for white space around it."""
    NUMBER = "number"
    """The last number in the text."""
    REGEX = "regex"
    """The expected text is a regular expression that is found in the text. Rust's syntax: matching takes linear time,
    whatever the text is; there are no look-arounds and no back-references."""
    JSON = "json"
    """As JSON values. The text is JSON, or has JSON in its last fenced block. Order of keys does not count."""


def matches(match: Match, text: str, expected: str) -> bool:
    """Whether a text is the expected one. An empty text equals nothing, and what cannot be read does not match."""
    match match:
        case Match.TEXT:
            return same_answer(text, expected)
        case Match.EXACT:
            return text.strip() == expected.strip() != ""
        case Match.NUMBER:
            found = _NUMBER.findall(text)
            return bool(found) and (number := _number(found[-1])) is not None and number == _number(expected)
        case Match.REGEX:
            return _finds(expected, text)
        case Match.JSON:
            try:
                return _same(_json(text), json.loads(expected))
            except (ValueError, RecursionError):
                return False


def unusable(match: Match, expected: str) -> tuple[str, str] | None:
    """Why nothing can match `expected`, and the remedy; None if something can."""
    match match:
        case Match.NUMBER if _number(expected) is None:
            return f"is not a number: {expected!r:.80}", "write a number, or use another `match`"
        case Match.REGEX:
            try:
                _pattern(expected)
            except SchemaError as error:
                return (
                    f"is not a regular expression: {str(error).splitlines()[-1]:.200}",
                    "use Rust's syntax, or another `match`",
                )
        case Match.JSON:
            try:
                json.loads(expected)
            except (ValueError, RecursionError):
                return f"is not JSON: {expected!r:.80}", "write a JSON value, or use another `match`"
        case _:
            pass
    return None


def same_answer(one: str, other: str) -> bool:
    """Compare two answers: `1,000.0` equals `1000`, ` The Nile.` equals `the nile`, and an empty answer equals none."""
    left, right = _normalised(one), _normalised(other)
    numbers = _number(left), _number(right)
    return numbers[0] == numbers[1] if None not in numbers else bool(left) and left == right


def _normalised(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split()).strip(".,;:!?\"'`*$ ")


def _number(text: str) -> Decimal | None:
    try:
        number = Decimal(text.replace(",", ""))
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


def _pattern(expression: str) -> TypeAdapter[str]:
    return TypeAdapter(Annotated[str, StringConstraints(pattern=expression)])


def _finds(expression: str, text: str) -> bool:
    try:
        _pattern(expression).validate_python(text)
    except (SchemaError, ValidationError):
        return False
    return True


def _json(text: str) -> Any:
    """The JSON value of a text. Raises ValueError and RecursionError."""
    try:
        return json.loads(text)
    except ValueError:
        # Not with a regular expression: on a text of fences and blank lines it would take quadratic time.
        block = text.rpartition("```")[0].rpartition("```")[2]
        return json.loads(block.removeprefix("json"))


def _same(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal; unlike for Python, true is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        left, right = cast("Mapping[str, Any]", one), cast("Mapping[str, Any]", other)
        return left.keys() == right.keys() and all(_same(value, right[name]) for name, value in left.items())
    if isinstance(one, list) and isinstance(other, list):
        pairs = cast("list[Any]", one), cast("list[Any]", other)
        return len(pairs[0]) == len(pairs[1]) and all(map(_same, *pairs))
    return one == other
