"""JSON Schema, without any I/O: what is wrong with a call's arguments, and what verl's own schema class accepts."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, cast

import structlog
from jsonschema import Draft202012Validator, validators
from jsonschema.exceptions import SchemaError, ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable

from gateway.compiled import Fits, compile_schema, matches
from gateway.types import ToolDefinition

log = structlog.get_logger(__name__)

MAX_FAULTS = 8
"""Messages per call: enough to correct it in one go, short enough for a prompt."""
_MAX_SHOWN = 80

_UNCHECKABLE = (Unresolvable, RecursionError, re.error)
"""What a schema that compiles can still do wrong when it is applied."""


def check_arguments(definition: ToolDefinition, arguments: object) -> list[str]:
    """One short message per fault of `arguments` against the tool's full input schema; empty when there is none.

    A schema that is itself broken checks nothing: the server, which made it, decides.
    """
    if not isinstance(arguments, Mapping):
        return [f"arguments: expected an object, got {_shown(arguments)}"]
    errors = argument_errors(definition, cast("Mapping[str, Any]", arguments))
    return [message for message, _ in zip(_messages(errors), range(MAX_FAULTS), strict=False)]


def argument_errors(definition: ToolDefinition, arguments: Mapping[str, Any]) -> list[ValidationError]:
    """The same faults as jsonschema finds them."""
    return _errors(definition.input_schema, arguments, subject=f"{definition.server}/{definition.name}")


def check_value(schema: Mapping[str, Any], value: object, *, subject: str) -> list[str]:
    """One short message per fault of `value` against `schema`; `subject` names it in logs."""
    errors = _errors(schema, value, subject=subject)
    return [message for message, _ in zip(_messages(errors), range(MAX_FAULTS), strict=False)]


def check_output(definition: ToolDefinition, structured: object) -> str | None:
    """What is wrong with a tool's structured content by its own output schema, or None."""
    if definition.output_schema is None:
        return None
    errors = _errors(definition.output_schema, structured, subject=f"{definition.server}/{definition.name}")
    return next(_messages(errors), None)


def schema_fault(schema: Mapping[str, Any]) -> str | None:
    """Why `schema` is no valid JSON Schema, or None."""
    try:
        validator_for(schema, default=Draft202012Validator).check_schema(dict(schema))
    except (SchemaError, RecursionError) as error:
        return error.message if isinstance(error, SchemaError) else "it never ends"
    return None


def _errors(schema: Mapping[str, Any], value: object, *, subject: str) -> list[ValidationError]:
    key = _Same(schema)
    if _surely_fits(key, value):
        return []
    validator = _compiled(key)
    if validator is None:
        return []
    try:
        return list(validator.iter_errors(cast("Any", value)))
    except _UNCHECKABLE as error:
        log.warning("schema.not_applicable", tool=subject, problem=f"{type(error).__name__}: {error}"[:200])
        return []


class _Same:
    """A schema as a cache key: equal to itself alone, so that a look-up costs nothing that grows with the schema."""

    __slots__ = ("schema",)

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.schema = schema

    def __hash__(self) -> int:
        return id(self.schema)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.schema is other.schema


def _surely_fits(key: _Same, value: object) -> bool:
    test = _test(key)
    try:
        return test is not None and test(value)
    except ValueError:
        return False


@lru_cache(maxsize=4096)
def _test(key: _Same) -> Fits | None:
    return compile_schema(key.schema)


def _check_pattern(_: object, pattern: Any, instance: Any, __: object) -> Iterator[ValidationError]:
    if isinstance(instance, str) and not matches(pattern, instance):
        yield ValidationError(f"{_shown(instance)} does not match {_shown(pattern)}")


@lru_cache(maxsize=4096)
def _compiled(key: _Same) -> Validator | None:
    """Compiling costs some sixty times what validating does; None for a schema that is not valid."""
    schema = dict(key.schema)
    if schema_fault(schema) is not None:
        return None
    # An empty registry: a `$ref` resolves within its document or not at all, never over the network.
    dialect = _with_own_patterns(validator_for(schema, default=Draft202012Validator))
    return dialect(schema, registry=Registry())


@lru_cache(maxsize=16)
def _with_own_patterns(dialect: type[Validator]) -> type[Validator]:
    # A pattern is the server's, and Python's `re` may take for ever over one.
    own = {"pattern": _check_pattern}
    return cast("type[Validator]", validators.extend(dialect, own))  # pyright: ignore[reportUnknownMemberType]


def _messages(errors: Iterable[ValidationError]) -> Iterator[str]:
    for error in errors:
        yield _message(error)


def _message(error: ValidationError) -> str:
    where = _path(error.absolute_path)
    # jsonschema's error attributes are untyped: keyword, its value in the schema, and the instance.
    keyword, wanted, got = cast("tuple[str, Any, Any]", (error.validator, error.validator_value, error.instance))
    prefix = f"{where}: " if where else ""
    match keyword:
        case "type":
            expected = " or ".join(cast("list[str]", wanted)) if isinstance(wanted, list) else str(wanted)
            return f"{where or 'arguments'}: expected {expected}, got {_shown(got)}"
        case "required":
            names = [name for name in cast("list[str]", wanted) if name not in got]
            return f"{prefix}missing required {', '.join(repr(name) for name in names)}"
        case "additionalProperties" | "unevaluatedProperties" if isinstance(got, Mapping):
            schema = cast("Mapping[str, Any]", error.schema)
            known = list(cast("Mapping[str, Any]", schema.get("properties", {})))
            extra = [name for name in cast("Mapping[str, Any]", got) if name not in known]
            hint = difflib.get_close_matches(extra[0], known, n=1) if extra else []
            near = f"; did you mean {hint[0]!r}?" if hint else f"; known: {', '.join(known) or 'none'}"
            return f"{prefix}unknown {', '.join(repr(name) for name in extra)}{near}"
        case "enum":
            return f"{where or 'arguments'}: expected one of {_shown(wanted)}, got {_shown(got)}"
        case "anyOf" | "oneOf" if types := _type_names(wanted):
            return f"{where or 'arguments'}: expected {' or '.join(types)}, got {_shown(got)}"
        case _:
            return f"{prefix}{_cut(error.message, 160)}"


def _type_names(branches: Any) -> list[str]:
    """The types of an `anyOf` whose branches are told apart by type; empty when one of them has none."""
    names = [_keyword(branch, "type") for branch in branches]
    return [str(name) for name in names] if all(isinstance(name, str) for name in names) else []


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


ALL_TYPES = ["string", "integer", "number", "boolean", "object", "array", "null"]


def verl_parameters(input_schema: Mapping[str, Any]) -> dict[str, Any]:
    """What verl 0.9.1's `OpenAIFunctionParametersSchema` accepts of a full input schema.

    It wants a `type` on every top-level property and keeps type, description and enum alone. `$ref`, `anyOf`, `oneOf`,
    `allOf`, `const` and `enum` are folded into that type; what has no type may be anything.
    """
    properties: dict[str, Any] = {}
    for name, schema in cast("Mapping[str, Any]", input_schema.get("properties") or {}).items():
        types = sorted(_types(schema, input_schema, frozenset()), key=ALL_TYPES.index) or ALL_TYPES
        folded: dict[str, Any] = {"type": types[0] if len(types) == 1 else types}
        resolved = _resolve(schema, input_schema)
        description = _keyword(schema, "description") or resolved.get("description") or ""
        folded["description"] = str(description)
        if values := _enum(resolved):
            folded["enum"] = values
        properties[name] = folded
    listed = cast("list[Any]", input_schema.get("required") or [])
    required = [name for name in listed if isinstance(name, str)]
    return {"type": "object", "properties": properties, "required": required}


def _keyword(schema: Any, name: str) -> Any:
    return cast("Mapping[str, Any]", schema).get(name) if isinstance(schema, Mapping) else None


def _enum(schema: Mapping[str, Any]) -> list[Any]:
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return list(cast("list[Any]", values)) if isinstance(values, list) else []


def _types(schema: Any, root: Mapping[str, Any], seen: frozenset[str]) -> set[str]:
    """The JSON types a property may have; the empty set when its schema does not say."""
    if not isinstance(schema, Mapping):
        return set()
    node = cast("Mapping[str, Any]", schema)
    reference = node.get("$ref")
    if isinstance(reference, str):
        return set() if reference in seen else _types(_target(reference, root), root, seen | {reference})
    declared = node.get("type")
    if isinstance(declared, str | list):
        names = {declared} if isinstance(declared, str) else {str(name) for name in cast("list[Any]", declared)}
        return names & _KNOWN
    if values := _enum(node):
        return {_type_of(value) for value in values}
    for keyword in ("anyOf", "oneOf"):
        if isinstance(branches := node.get(keyword), list):
            found = [_types(branch, root, seen) for branch in cast("list[Any]", branches)]
            return set[str]().union(*found) if all(found) else set()
    if isinstance(branches := node.get("allOf"), list):
        known = [types for branch in cast("list[Any]", branches) if (types := _types(branch, root, seen))]
        return set[str].intersection(*known) if known else set()
    return {"object"} if "properties" in node else {"array"} if "items" in node else set()


_KNOWN = frozenset(ALL_TYPES)


def _type_of(value: object) -> str:
    match value:
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case None:
            return "null"
        case list():
            return "array"
        case _:
            return "object"


def _resolve(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Follow `$ref`s within the document; an `Optional[X]` counts as its X."""
    for _ in range(16):
        if not isinstance(schema, Mapping):
            return {}
        node = cast("Mapping[str, Any]", schema)
        reference, branches = node.get("$ref"), node.get("anyOf")
        if isinstance(reference, str):
            schema = _target(reference, root)
        elif isinstance(branches, list):
            real = [branch for branch in cast("list[Any]", branches) if _keyword(branch, "type") != "null"]
            if len(real) != 1:
                return node
            schema = real[0]
        else:
            return node
    return {}


def _target(reference: str, root: Mapping[str, Any]) -> Any:
    here: Any = root
    for part in filter(None, reference.removeprefix("#").split("/")):
        step = part.replace("~1", "/").replace("~0", "~")
        here = cast("Mapping[str, Any]", here).get(step) if isinstance(here, Mapping) and reference[:1] == "#" else None
    return here
