"""What is wrong with arguments, answers and results by their JSON Schema: one short message per fault, no I/O."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from typing import Any, cast

import structlog
from jsonschema_rs import ValidationError, ValidationErrorKind

from gateway.schemas.compiled import Program, Programs, TooMuch, Unchecked, compile_schema
from gateway.types import ToolDefinition

log = structlog.get_logger(__name__)

MAX_FAULTS = 8
"""Messages per call: enough to correct it in one go, short enough for a prompt."""
_MAX_SHOWN = 80
_PROGRAMS = Programs()


def check_arguments(
    definition: ToolDefinition, arguments: object, *, fixed: Mapping[str, Any] | None = None
) -> list[str]:
    """One short message per fault of `arguments` against the tool's full input schema; empty when there is none.

    A schema that is itself broken or costs too much checks nothing: the server, which made it, decides.

    Args:
        fixed: What the gateway adds before they are sent. No message tells of it.
    """
    if not isinstance(arguments, Mapping):
        return [f"arguments: expected an object, got {_shown(arguments)}"]
    given, fixed = cast("Mapping[str, Any]", arguments), fixed or {}
    if both := [name for name in given if name in fixed]:
        return [f"unknown {name!r}" for name in both][:MAX_FAULTS]
    whole = {**given, **fixed}
    program = _program(definition)
    if program is None or program.fits(whole):
        return []
    return _faults(program, whole, _subject(definition), hidden=frozenset(fixed))


def argument_errors(
    definition: ToolDefinition, arguments: Mapping[str, Any], *, fixed: Mapping[str, Any] | None = None
) -> list[ValidationError]:
    """The same faults as the validator finds them; empty, too, where it cannot say which they are."""
    try:
        return _errors(_program(definition), {**arguments, **(fixed or {})}, _subject(definition)) or []
    except ValueError:
        return []


def _program(definition: ToolDefinition) -> Program | None:
    return _PROGRAMS.get(definition.sent_schema, subject=_subject(definition))


def check_value(schema: Mapping[str, Any], value: object, *, subject: str) -> list[str]:
    """One short message per fault of `value` against a schema that is used once; `subject` names it in logs."""
    return _faults(compile_schema(schema, subject=subject), value, subject, whole="the answer")


def check_output(definition: ToolDefinition, structured: object) -> str | None:
    """What is wrong with a tool's structured content by its own output schema, or None."""
    if definition.output_schema is None:
        return None
    subject = f"{_subject(definition)} (output)"
    program = _PROGRAMS.get(definition.output_schema, subject=subject)
    if program is None or program.fits(structured):
        return None
    return next(iter(_faults(program, structured, subject, whole="structured content")), None)


def schema_fault(schema: Mapping[str, Any]) -> str | None:
    """Why nothing is checked against `schema`, or None."""
    try:
        Program(schema)
    except Unchecked as problem:
        return str(problem)
    return None


def _subject(definition: ToolDefinition) -> str:
    return f"{definition.server}/{definition.name}"


def _faults(
    program: Program | None,
    value: object,
    subject: str,
    *,
    whole: str = "arguments",
    hidden: frozenset[str] = frozenset(),
) -> list[str]:
    """One message for each fault.

    Args:
        whole: What the value is called.
        hidden: Names of arguments that no message may tell of.
    """
    try:
        errors = _errors(program, value, subject)
    except ValueError as error:
        return [f"{whole}: {error}"]
    if errors is None:
        return [f"{whole}: does not fit the schema and is too large to say where"]
    messages = dict.fromkeys(_message(error, program, whole, hidden) for error in errors)
    return list(messages)[:MAX_FAULTS]


def _errors(program: Program | None, value: object, subject: str) -> list[ValidationError] | None:
    """The faults; None where there are some and they cannot be told. Raises ValueError for what is no JSON value."""
    if program is None:
        return []
    try:
        return program.errors(value)
    except TooMuch as problem:
        log.warning("schema.too_much", tool=subject, problem=str(problem))
        return []


def _message(error: ValidationError, program: Program | None, whole: str, hidden: frozenset[str]) -> str:
    where, kind, got = _path(error.instance_path), error.kind, error.instance
    if hidden and error.instance_path[:1] and error.instance_path[0] in hidden:
        return "arguments: they do not go together with what is filled in"
    at, prefix = where or whole, f"{where}: " if where else ""
    match kind:
        case ValidationErrorKind.Type():
            return f"{at}: expected {' or '.join(kind.types)}, got {_shown(got)}"
        case ValidationErrorKind.Required():
            return f"{prefix}missing required {kind.property!r}"
        case ValidationErrorKind.AdditionalProperties() | ValidationErrorKind.UnevaluatedProperties():
            beside = program.names_beside(error.schema_path) if program is not None else []
            known = [name for name in beside if where or name not in hidden]
            hint = difflib.get_close_matches(kind.unexpected[0], known, n=1) if kind.unexpected else []
            near = f"; did you mean {hint[0]!r}?" if hint else f"; known: {', '.join(known) or 'none'}"
            return _cut(f"{prefix}unknown {', '.join(repr(name) for name in kind.unexpected)}", 160) + _cut(near, 400)
        case _ if hidden and not where:  # it would quote all arguments, and what is filled in may be secret
            return f"arguments: they do not fit the schema's {kind.name}"
        case ValidationErrorKind.Enum():
            return f"{at}: expected one of {_shown(kind.options)}, got {_shown(got)}"
        case ValidationErrorKind.AnyOf() | ValidationErrorKind.OneOfNotValid() if types := _type_names(kind.context):
            return f"{at}: expected {' or '.join(types)}, got {_shown(got)}"
        case _:
            return f"{prefix}{_cut(error.message, 160)}"


def _type_names(branches: Iterable[list[ValidationError]]) -> list[str]:
    """The types of an `anyOf` none of whose branches has the value's type; empty when it is not a matter of that."""
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


def _shown(value: object) -> str:
    try:
        return _cut(json.dumps(value, ensure_ascii=False), _MAX_SHOWN)
    except (TypeError, ValueError):
        return _cut(repr(value), _MAX_SHOWN)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
