"""Prepare the arguments of a call: add fixed ones, validate, and coerce strings that nearly fit.

Policies write `"3"` for `3`, JSON text where an object is due, or all arguments as one JSON string. Where the schema
leaves exactly one reading of such a string, that reading is sent; every change is reported with the result.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from jsonschema_rs import ValidationError, ValidationErrorKind
from pydantic_core import from_json

from mcp_rollout.gateway.schemas.check import MAX_FAULTS, describe_errors, find_errors, show_value
from mcp_rollout.gateway.schemas.compiled import PROGRAMS
from mcp_rollout.gateway.schemas.extent import DEEPEST, MOST_BITS, MOST_DIGITS, MOST_NESTED, measure
from mcp_rollout.gateway.types import ToolDefinition, empty

_INTEGER = re.compile(r"-?(0|[1-9]\d{0,17})")
_NUMBER = re.compile(r"-?(0|[1-9]\d{0,17})(\.\d{1,17})?([eE][+-]?\d{1,3})?")
_UNREADABLE = object()
WHOLE = "$"
"""Path of a change to all arguments at once, as JSONPath names the root."""


@dataclass(kw_only=True, slots=True)  # not frozen: one is made for each call, and freezing costs as much as validating
class Prepared:
    """The arguments of one call, ready to be sent, or the reasons why it is not sent."""

    arguments: dict[str, Any] = field(default_factory=empty)
    """What is sent, fixed arguments included; empty where there are faults."""
    changes: dict[str, Any] = field(default_factory=empty)
    """The value sent in place of each coerced string, by dotted path; by `WHOLE` for all arguments."""
    faults: list[str] = field(default_factory=list[str])
    """One short message per fault, for the policy to read."""

    def refusal(self, name: str) -> str:
        """What the caller of the tool with this exposed name reads in place of a result."""
        return f"Invalid arguments for {name}: " + "; ".join(self.faults)


def prepare(
    definition: ToolDefinition, arguments: object, *, fixed: Mapping[str, Any] | None = None, as_sent: bool = False
) -> Prepared:
    """Validate the arguments of a call against the tool's full input schema; valid arguments are validated only once.

    A schema that is broken, or too expensive for these arguments, is not enforced: the server, which wrote it, decides.

    Args:
        arguments: As the policy wrote them.
        fixed: Arguments that the gateway adds. No message mentions them, and the policy may not give them.
        as_sent: Whether the schema is left to the server: nothing is coerced, and only what JSON or the bounds on depth
            and digits forbid is a fault.
    """
    fixed = fixed or {}
    given: object = arguments
    changes: dict[str, Any] = {}
    if isinstance(arguments, str):
        given = changes[WHOLE] = _read_json(arguments, dict)
    if type(given) is not dict and not isinstance(given, Mapping):  # the first test is a tenth of the other
        return Prepared(faults=[f"arguments: expected an object, got {show_value(arguments)}"])
    given = cast("Mapping[str, Any]", given)
    # The policy's schema does not have them, so for the policy they are unknown names like any other.
    if both := [name for name in given if name in fixed]:
        return Prepared(faults=[f"unknown {name!r}" for name in both][:MAX_FAULTS])
    sent = {**given, **fixed}
    try:
        extent = measure(sent)
    except ValueError as error:
        return Prepared(faults=[f"arguments: {error}"])
    if extent.depth > MOST_NESTED:
        return Prepared(faults=[f"arguments: nested more than {MOST_NESTED} deep"])
    if extent.longest_bits > MOST_BITS:
        return Prepared(faults=[f"arguments: an integer has more than {MOST_DIGITS} digits, or all have too many"])
    if as_sent:
        return Prepared(arguments=sent, changes=changes)
    subject = f"{definition.server}/{definition.name}"
    program = PROGRAMS.get(definition.full_schema or definition.input_schema, subject=subject)
    if program is None or program.fits(sent, extent):
        return Prepared(arguments=sent, changes=changes)
    errors = find_errors(program, sent, subject)
    if not errors and errors is not None:  # too expensive to validate
        return Prepared(arguments=sent, changes=changes)
    # Validated again as a whole: each reading fits its own place, and together they may break another rule of the
    # schema.
    if (coerced := _coerce(sent, errors or (), fixed)) is not None and program.fits(coerced[0]):
        return Prepared(arguments=coerced[0], changes={**changes, **coerced[1]})
    return Prepared(faults=describe_errors(errors, program, hidden=fixed.keys()))


def encodable(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same arguments where JSON can hold them, else a copy with replacements, for tools of the harness.

    The messages of a trajectory contain what a policy wrote into calls that were never sent. In the copy, lone
    surrogates are U+FFFD, numbers that are not finite are text, and what is nested more than `DEEPEST` deep, or is an
    integer of more than `MOST_DIGITS` digits, is `…`.
    """
    try:
        fits = measure(arguments).longest_bits <= MOST_BITS
    except ValueError:
        fits = False
    return arguments if fits else _replaced(arguments, DEEPEST)


def _replaced(value: Any, levels: int) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        return "…"
    if isinstance(value, Mapping | list | tuple) and not levels:
        return "…"
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {_replaced(str(name), levels): _replaced(inner, levels - 1) for name, inner in items}
    if isinstance(value, list | tuple):
        return [_replaced(inner, levels - 1) for inner in cast("Sequence[Any]", value)]
    return value


def _coerce(
    sent: Mapping[str, Any], errors: Sequence[ValidationError], fixed: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The arguments with every fault corrected, and the changes by path; None if one is ambiguous or not correctable.

    A fault can be corrected if the value is a string, the schema allows no string there, and the string is the JSON of
    exactly one value that the schema allows.
    """
    at_fault: dict[tuple[str | int, ...], list[ValidationError]] = {}
    for error in errors:
        at_fault.setdefault(tuple(error.instance_path), []).append(error)
    if not at_fault:
        return None
    corrected: dict[str, Any] = copy.deepcopy(dict(sent))
    changes: dict[str, Any] = {}
    for path, at_path in at_fault.items():
        readings = _readings_of_all(at_path)
        if readings is None or len(readings) != 1 or not path or path[0] in fixed:
            return None
        place: Any = corrected
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = changes[".".join(map(str, path))] = readings[0]
    return corrected, changes


def _readings_of_all(errors: Sequence[ValidationError]) -> list[Any] | None:
    """The distinct values that satisfy all errors at one path.

    None if the value is not a string, a string is allowed, or an error is not about the value's type.
    """
    found: list[Any] | None = None
    for error in errors:
        readings = _readings(error)
        if readings is None or error.instance_path != errors[0].instance_path:
            return None
        found = readings if found is None else [value for value in found if _is_among(value, readings)]
    return found


def _readings(error: ValidationError) -> list[Any] | None:
    """As `_readings_of_all`, for one error."""
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
            return _each_once(value for value in error.kind.options if _denotes(text, value))
        case ValidationErrorKind.Constant():
            return [error.kind.expected_value] if _denotes(text, error.kind.expected_value) else []
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


def _denotes(text: str, value: object) -> bool:
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
    """The value that a text is the JSON of; `_UNREADABLE` where it is not, or not of this kind."""
    try:
        value = from_json(text.encode(), allow_inf_nan=False)
    except ValueError:
        return _UNREADABLE
    return value if isinstance(value, kind) else _UNREADABLE
