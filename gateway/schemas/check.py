"""Validate arguments, answers and results against JSON Schemas, with one short message per fault. No I/O."""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import structlog
from jsonschema_rs import ValidationError, ValidationErrorKind

from mcp_rollout.gateway.schemas.compiled import PROGRAMS, Program, TooMuch, Unchecked, compile_schema
from mcp_rollout.gateway.types import ToolDefinition

log = structlog.get_logger(__name__)

MAX_FAULTS = 8
"""Messages per call: enough to correct it in one go, short enough for a prompt."""
_MAX_SHOWN = 80


def check_value(schema: Mapping[str, Any], value: object, *, subject: str) -> list[str]:
    """One short message per fault of `value` against a schema that is used once; `subject` names it in log lines."""
    return _faults(compile_schema(schema, subject=subject), value, subject, whole="the answer")


def check_output(definition: ToolDefinition, structured: object) -> str | None:
    """The first fault of a tool's structured content against its own output schema, or None."""
    if definition.output_schema is None:
        return None
    subject = f"{definition.server}/{definition.name} (output)"
    program = PROGRAMS.get(definition.output_schema, subject=subject)
    return next(iter(_faults(program, structured, subject, whole="structured content")), None)


def schema_fault(schema: Mapping[str, Any]) -> str | None:
    """Why a schema cannot be used for validation, or None."""
    try:
        Program(schema)
    except Unchecked as problem:
        return str(problem)
    return None


def find_errors(program: Program | None, value: object, subject: str) -> list[ValidationError] | None:
    """The validator's errors; None if there are some that are too many to list.

    A schema that is `Unchecked`, or too expensive for this value, yields no errors: the server decides.

    Raises:
        ValueError: `value` is not a JSON value.
    """
    if program is None:
        return []
    try:
        return program.errors(value)
    except TooMuch as problem:
        log.warning("schema.too_much", tool=subject, problem=str(problem))
        return []


def describe_errors(
    errors: list[ValidationError] | None,
    program: Program | None,
    *,
    whole: str = "arguments",
    hidden: Collection[str] = (),
) -> list[str]:
    """One short message per error, at most `MAX_FAULTS`.

    Args:
        errors: From `find_errors`.
        whole: What the value is called.
        hidden: Names of arguments that no message may mention.
    """
    if errors is None:
        return [f"{whole}: does not fit the schema and is too large to say where"]
    messages = dict.fromkeys(_message(error, program, whole, hidden) for error in errors)
    return list(messages)[:MAX_FAULTS]


def _faults(program: Program | None, value: object, subject: str, *, whole: str) -> list[str]:
    try:
        return describe_errors(find_errors(program, value, subject), program, whole=whole)
    except ValueError as error:
        return [f"{whole}: {error}"]


def _message(error: ValidationError, program: Program | None, whole: str, hidden: Collection[str]) -> str:
    where, kind, got = _path(error.instance_path), error.kind, error.instance
    if hidden and error.instance_path[:1] and error.instance_path[0] in hidden:
        return "arguments: they conflict with arguments that are filled in"
    at, prefix = where or whole, f"{where}: " if where else ""
    match kind:
        case ValidationErrorKind.Type():
            return f"{at}: expected {' or '.join(kind.types)}, got {show_value(got)}"
        case ValidationErrorKind.Required():
            return f"{prefix}missing required {kind.property!r}"
        case ValidationErrorKind.AdditionalProperties() | ValidationErrorKind.UnevaluatedProperties():
            beside = program.names_beside(error.schema_path) if program is not None else []
            known = [name for name in beside if where or name not in hidden]
            hint = difflib.get_close_matches(kind.unexpected[0], known, n=1) if kind.unexpected else []
            near = f"; did you mean {hint[0]!r}?" if hint else f"; known: {', '.join(known) or 'none'}"
            return _cut(f"{prefix}unknown {', '.join(repr(name) for name in kind.unexpected)}", 160) + _cut(near, 400)
        case _ if hidden and not where:  # the validator quotes all arguments, and a fixed one may be secret
            return f"arguments: they do not fit the schema's {kind.name}"
        case ValidationErrorKind.Enum():
            return f"{at}: expected one of {show_value(kind.options)}, got {show_value(got)}"
        case ValidationErrorKind.AnyOf() | ValidationErrorKind.OneOfNotValid() if types := _type_names(kind.context):
            return f"{at}: expected {' or '.join(types)}, got {show_value(got)}"
        case _:
            return f"{prefix}{_cut(error.message, 160)}"


def _type_names(branches: Iterable[list[ValidationError]]) -> list[str]:
    """The types of an `anyOf` where no branch accepts the value's type; empty if a branch fails for another reason."""
    names: list[str] = []
    for errors in branches:
        kinds = [error.kind for error in errors]
        if len(kinds) != 1 or not isinstance(kinds[0], ValidationErrorKind.Type):
            return []
        names += kinds[0].types
    return list(dict.fromkeys(names))


def _path(parts: Iterable[str | int]) -> str:
    text = ""
    for part in parts:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def show_value(value: object) -> str:
    """A value as a message quotes it, cut to a length that fits a prompt."""
    try:
        return _cut(json.dumps(value, ensure_ascii=False), _MAX_SHOWN)
    except (TypeError, ValueError, RecursionError):  # no JSON, too many digits, nested too deep
        return f"a value of type {type(value).__name__}"


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
