"""Arguments that nearly fit: a number in a string, JSON text where an object is due."""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from jsonschema_rs import ValidationError, ValidationErrorKind

from gateway.schema import argument_errors, check_arguments
from gateway.types import ToolDefinition

_INTEGER = re.compile(r"-?(0|[1-9]\d{0,17})")
_NUMBER = re.compile(r"-?(0|[1-9]\d{0,17})(\.\d{1,17})?([eE][+-]?\d{1,3})?")
_UNREADABLE = object()


@dataclass(frozen=True, kw_only=True, slots=True)
class Coerced:
    """Arguments that fit, and what was changed for it."""

    arguments: dict[str, Any]
    changes: dict[str, Any]
    """The value that is sent instead of the string that the policy gave, by dotted path."""


def coerce(definition: ToolDefinition, arguments: object, *, fixed: Mapping[str, Any] | None = None) -> Coerced | None:
    """The arguments with every fault mended; None where a fault cannot be, or could be in more than one way.

    A fault can be mended where a string stands, the schema allows none there, and the string holds exactly one value
    that it does allow, as JSON writes it. What comes out fits the whole schema.

    Args:
        fixed: What the gateway adds to the arguments; it is left as it is.
    """
    if not isinstance(arguments, Mapping):
        return None
    arguments = cast("Mapping[str, Any]", arguments)
    errors = argument_errors(definition, arguments, fixed=fixed)
    if not errors:
        return None
    mended: dict[str, Any] = copy.deepcopy(dict(arguments))
    changes: dict[str, Any] = {}
    for error in errors:
        path = error.instance_path
        value = _reading(error)
        if value is _UNREADABLE or not path or path[0] in (fixed or ()):
            return None
        place: Any = mended
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value
        changes[".".join(map(str, path))] = value
    if check_arguments(definition, mended, fixed=fixed):
        return None
    return Coerced(arguments=mended, changes=changes)


def _reading(error: ValidationError) -> Any:
    """The one value that the string at fault can stand for, or `_UNREADABLE`."""
    text = cast("object", error.instance)
    allowed = _types(error)
    if not isinstance(text, str) or not allowed or "string" in allowed:
        return _UNREADABLE
    readings = [value for value in (_read(text, kind) for kind in allowed) if value is not _UNREADABLE]
    # `integer` and `number` read the same value.
    return readings[0] if len({repr(value) for value in readings}) == 1 else _UNREADABLE


def _types(error: ValidationError) -> list[str]:
    """The types that would have been right there; empty where it is not a matter of type alone."""
    match error.kind:
        case ValidationErrorKind.Type():
            return error.kind.types
        case ValidationErrorKind.AnyOf() | ValidationErrorKind.OneOfNotValid():
            branches = [branch for errors in error.kind.context for branch in errors]
            if any(branch.instance_path != error.instance_path for branch in branches):
                return []
            kinds = [branch.kind for branch in branches]
            if not all(isinstance(kind, ValidationErrorKind.Type) for kind in kinds):
                return []
            return [kind for branch in branches for kind in _types(branch)]
        case _:
            return []


def _read(text: str, kind: str) -> Any:
    match kind:
        case "integer" if _INTEGER.fullmatch(text):
            return int(text)
        case "number" if _INTEGER.fullmatch(text):
            return int(text)
        case "number" if _NUMBER.fullmatch(text) and math.isfinite(float(text)):
            return float(text)
        case "boolean" if text in ("true", "false"):
            return text == "true"
        case "object" | "array":
            return _read_json(text, dict if kind == "object" else list)
        case _:
            return _UNREADABLE


def _read_json(text: str, kind: type) -> Any:
    try:
        value = json.loads(text, parse_constant=_no_number)
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):  # half of a surrogate pair is a ValueError too
        return _UNREADABLE
    return value if isinstance(value, kind) else _UNREADABLE


def _no_number(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")
