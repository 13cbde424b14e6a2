"""Compare a text with what is expected: a final answer with its ground truth, or a tool's result with a check."""

from __future__ import annotations

import json
from asyncio import wrap_future
from enum import StrEnum
from importlib.util import find_spec
from typing import Annotated, Any

from pydantic import StringConstraints, TypeAdapter, ValidationError
from pydantic_core import SchemaError

from mcp_rollout.gateway.differences import differences
from mcp_rollout.rollout.environment.math_answers import same_math
from mcp_rollout.rollout.environment.numbers import bare, last_number, plain, whole_number
from mcp_rollout.rollout.extras import install_command


class Match(StrEnum):
    """How a text is compared with the expected one."""

    TEXT = "text"
    """As numbers if both are one, else as text without regard to case, typesetting, spaces and punctuation around."""
    EXACT = "exact"
    """Character by character, but for white space around it."""
    NUMBER = "number"
    """The last number in the text, whatever its unit is unless the expected one has it."""
    REGEX = "regex"
    """The expected text is a regular expression that is found in the text. Rust's syntax: matching takes linear time,
    whatever the text is; there are no look-arounds and no back-references."""
    JSON = "json"
    """As JSON values. The text is JSON, or has JSON in its last fenced block. Order of keys does not count."""
    MATH = "math"
    """As mathematics in LaTeX or plain text, by math-verify as in verl's `math_verify`: the extra `math`."""


async def compare(match: Match, text: str, expected: str, *, timeout_s: float) -> bool:
    """Compare as `matches`, without holding the event loop."""
    if match is Match.MATH:
        return await wrap_future(same_math(text, expected, timeout_s=timeout_s))
    return matches(match, text, expected)


def matches(match: Match, text: str, expected: str, *, timeout_s: float = 30.0) -> bool:
    """Whether a text is the expected one. An empty text equals nothing, and what cannot be read does not match.

    Args:
        timeout_s: how long `Match.MATH` may take, the others' time being linear; what takes longer does not match.
    """
    match match:
        case Match.TEXT:
            return same_answer(text, expected)
        case Match.EXACT:
            return text.strip() == expected.strip() != ""
        case Match.NUMBER:
            found, number = last_number(text), whole_number(expected)
            if found is None or number is None:
                return False
            return found.value == number.value and number.unit in ("", found.unit)
        case Match.REGEX:
            return _finds(expected, text)
        case Match.JSON:
            try:
                return not any(differences(_json(text), json.loads(expected)))
            except (ValueError, RecursionError):
                return False
        case Match.MATH:
            return same_math(text, expected, timeout_s=timeout_s).result()


def unusable(match: Match, expected: str) -> tuple[str, str] | None:
    """Why nothing can match `expected`, and the remedy; None if something can."""
    match match:
        case Match.NUMBER if whole_number(expected) is None:
            return f"is not a number: {expected!r:.80}", "write one, as in 1234.5, or use another `match`"
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
        case Match.MATH if find_spec("math_verify") is None:
            return "cannot be compared by `match: math`: math-verify is not installed", install_command("math")
        case _:
            pass
    return None


def same_answer(one: str, other: str) -> bool:
    """Compare two answers: `1,000.0` equals `1000`, ` The Nile.` equals `the nile`, and an empty answer equals none."""
    numbers = whole_number(one), whole_number(other)
    if None not in numbers:
        return numbers[0] == numbers[1]
    left = bare(plain(one))
    return left == bare(plain(other)) != ""


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
