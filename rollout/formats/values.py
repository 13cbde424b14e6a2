"""Values in calls: JSON that may be broken, and text whose type only the tool's schema gives."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from gateway.schemas.cost import MOST_NESTED, measure

_JSON_TYPES: dict[type[Any], str] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
}


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


def parameter_schemas(tools: Sequence[Mapping[str, Any]], name: str) -> Mapping[str, Any]:
    """The schemas of a tool's parameters by name; empty where there is no such tool."""
    for tool in tools:
        function: dict[str, Any] = tool.get("function", {})
        if function.get("name") == name:
            schema: dict[str, Any] = function.get("parameters") or {}
            return schema.get("properties") or {}
    return {}


def typed(text: str, schema: object) -> object:
    """The value of a parameter's text, in formats that write strings without quotes.

    Text of a parameter declared a string stays as it is, `12` included; any other is read as JSON, or as Python where a
    template writes `True`, `None` or a list that way. Unreadable text stays text, for the schema check to refuse.
    Without a schema the text is read as JSON if it is JSON; else it is text without surrounding whitespace.
    """
    kinds = _kinds(schema)
    if kinds == {"string"}:
        return text
    bare = text.strip()
    if kinds == {"string", "null"}:
        return None if bare in ("null", "None") else text
    if kinds and bare in ("True", "False", "None"):
        return {"True": True, "False": False, "None": None}[bare]
    try:
        return decode_json(bare)
    except ValueError:
        return _python(bare) if kinds else bare


def _python(text: str) -> object:
    """A list, tuple or mapping as Python writes it; anything else is the text itself."""
    if text[:1] not in ("[", "{", "("):
        return text
    try:
        value = ast.literal_eval(text)
        return decode_json(json.dumps(value))
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return text


def _kinds(schema: object) -> set[str]:
    """The JSON types that a schema allows; empty where it does not say."""
    if not isinstance(schema, Mapping):
        return set()
    fields = cast("Mapping[str, Any]", schema)
    stated: Any = fields.get("type")
    if stated is not None:
        return {stated} if isinstance(stated, str) else {str(kind) for kind in stated}
    if "const" in fields or "enum" in fields:
        values: list[object] = fields["enum"] if "enum" in fields else [fields["const"]]
        return {_JSON_TYPES.get(type(value), "object") for value in values}
    branches = [_kinds(branch) for key in ("anyOf", "oneOf") for branch in fields.get(key) or ()]
    return {kind for branch in branches for kind in branch} if all(branches) else set()
