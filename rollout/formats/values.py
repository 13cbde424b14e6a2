"""Values in calls: JSON that may be broken, and text whose type only the tool's schema gives."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from mcp_rollout.gateway.schemas.extent import MOST_NESTED, measure
from mcp_rollout.gateway.schemas.projection import Types, type_of

_WORDS = {"True": True, "False": False, "None": None}


def decode_json(text: str) -> object:
    """`json.loads` for text that a policy wrote, which may be anything.

    Raises:
        ValueError: not JSON, nested more than `MOST_NESTED` deep, a number that is not finite or has thousands of
            digits, or a lone surrogate. None of these can be sent to a server or stored in a trace.
    """
    try:
        value: object = json.loads(text)
        depth = measure(value).depth
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} at {error.pos}") from error
    except RecursionError as error:
        raise ValueError(f"nested more than {MOST_NESTED} deep") from error
    if depth > MOST_NESTED:
        raise ValueError(f"nested more than {MOST_NESTED} deep")
    return value


def decode_arguments(text: str) -> dict[str, Any]:
    """A call's arguments, written as a JSON object.

    Raises:
        ValueError: the text is not JSON, or not an object; a sentence for the policy, without a full stop.
    """
    try:
        value = decode_json(text)
    except ValueError as error:
        raise ValueError(f"The arguments are not valid JSON ({error})") from error
    if not isinstance(value, dict):
        raise ValueError(f"The arguments must be an object, not {type(value).__name__}")
    return cast("dict[str, Any]", value)


def parameter_types(tools: Sequence[Mapping[str, Any]], name: str) -> Callable[[str], set[str] | None]:
    """What gives the JSON types that a parameter of a tool may have: none if any, None if it has no schema."""
    for tool in tools:
        function: dict[str, Any] = tool.get("function", {})
        if function.get("name") == name:
            return Types(function.get("parameters") or {}).of_member
    return lambda _: None


def typed(text: str, kinds: set[str] | None) -> object:
    """The value of a parameter's text, in formats that write strings without quotes.

    Text of a parameter that may be a string stays as it is, `12` included, unless it is the JSON of another type that
    the parameter may have. Any other is read as JSON, or as Python where a template writes `True`, `None` or a list
    that way. Unreadable text stays text, for the schema check to refuse. Without types the text is read as JSON if it
    is JSON; else it is text without surrounding whitespace.
    """
    if kinds == {"string"}:
        return text
    bare = text.strip()
    if kinds and bare in _WORDS:
        value: object = _WORDS[bare]
    else:
        try:
            value = decode_json(bare)
        except ValueError:
            value = _python(bare) if kinds else bare
    if not kinds or "string" not in kinds:
        return value
    read_as = {type_of(value), "number"} if type_of(value) == "integer" else {type_of(value)}
    return text if read_as.isdisjoint(kinds - {"string"}) else value


def _python(text: str) -> object:
    """A list, tuple or mapping as Python writes it; anything else is the text itself."""
    if text[:1] not in ("[", "{", "("):
        return text
    try:
        value = ast.literal_eval(text)
        return decode_json(json.dumps(value))
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return text
