"""Arguments that nearly fit: a number in a string, JSON text where an object is due, or in place of all of them."""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from jsonschema_rs import ValidationError, ValidationErrorKind

from gateway.schemas.check import argument_errors, check_arguments
from gateway.types import ToolDefinition

_INTEGER = re.compile(r"-?(0|[1-9]\d{0,17})")
_NUMBER = re.compile(r"-?(0|[1-9]\d{0,17})(\.\d{1,17})?([eE][+-]?\d{1,3})?")
_UNREADABLE = object()
WHOLE = "$"
"""Where all the arguments were one string, as JSONPath names the whole."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Coerced:
    """Arguments that fit, and what was changed for it."""

    arguments: dict[str, Any]
    changes: dict[str, Any]
    """The value that is sent instead of the string that the policy gave, by dotted path; by `WHOLE` for all of them."""


def coerce(definition: ToolDefinition, arguments: object, *, fixed: Mapping[str, Any] | None = None) -> Coerced | None:
    """The arguments with every fault mended; None where a fault cannot be, or could be in more than one way.

    A fault can be mended where a string stands, the schema allows none there, and the string holds exactly one value
    that it does allow, as JSON writes it. What comes out fits the whole schema.

    Args:
        fixed: What the gateway adds to the arguments; it is left as it is.
    """
    changes: dict[str, Any] = {}
    if isinstance(arguments, str):
        arguments = changes[WHOLE] = _read_json(arguments, dict)
    if not isinstance(arguments, Mapping):
        return None
    arguments = cast("Mapping[str, Any]", arguments)
    at_fault: dict[tuple[str | int, ...], list[ValidationError]] = {}
    for error in argument_errors(definition, arguments, fixed=fixed):
        at_fault.setdefault(tuple(error.instance_path), []).append(error)
    if not at_fault:
        fits = changes and not check_arguments(definition, arguments, fixed=fixed)
        return Coerced(arguments=dict(arguments), changes=changes) if fits else None
    mended: dict[str, Any] = copy.deepcopy(dict(arguments))
    for path, errors in at_fault.items():
        readings = _readings_of_all(errors)
        if readings is None or len(readings) != 1 or not path or path[0] in (fixed or ()):
            return None
        place: Any = mended
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = changes[".".join(map(str, path))] = readings[0]
    if check_arguments(definition, mended, fixed=fixed):
        return None
    return Coerced(arguments=mended, changes=changes)


def _readings_of_all(errors: Sequence[ValidationError]) -> list[Any] | None:
    """The values that the string at fault can stand for by all of these faults, each once; None where that cannot be
    told: it is no string, a string is allowed, or more is wrong than what the value is."""
    found: list[Any] | None = None
    for error in errors:
        readings = _readings(error)
        if readings is None or error.instance_path != errors[0].instance_path:
            return None
        found = readings if found is None else [value for value in found if _is_among(value, readings)]
    return found


def _readings(error: ValidationError) -> list[Any] | None:
    """The same by one fault."""
    text = cast("object", error.instance)
    if not isinstance(text, str):
        return None
    match error.kind:
        case ValidationErrorKind.Type():
            if "string" in error.kind.types:
                return None
            # `integer` and `number` read the same value.
            return _each_once(_read(text, kind) for kind in error.kind.types)
        case ValidationErrorKind.Enum():
            return _each_once(value for value in error.kind.options if _stands_for(text, value))
        case ValidationErrorKind.Constant():
            return [error.kind.expected_value] if _stands_for(text, error.kind.expected_value) else []
        case ValidationErrorKind.AnyOf() | ValidationErrorKind.OneOfNotValid():
            branches = [_readings_of_all(branch) for branch in error.kind.context]
            if any(readings is None for readings in branches):
                return None
            here = {tuple(inner.instance_path) for branch in error.kind.context for inner in branch}
            if here != {tuple(error.instance_path)}:
                return None
            return _each_once(value for readings in branches for value in readings or ())
        case _:
            return None


def _stands_for(text: str, value: object) -> bool:
    match value:
        case bool():
            kind = "boolean"
        case int() | float():
            kind = "number"
        case list():
            kind = "array"
        case dict():
            kind = "object"
        case _:
            return False
    return _is_among(_read(text, kind), [value])


def _is_among(value: Any, others: Sequence[Any]) -> bool:
    return any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in others)


def _each_once(values: Iterable[Any]) -> list[Any]:
    found: list[Any] = []
    for value in values:
        if value is not _UNREADABLE and not _is_among(value, found):
            found.append(value)
    return found


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
