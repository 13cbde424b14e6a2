"""Reduce a tool's input schema to what verl's own schema class accepts: each argument's type, description and enum."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce
from typing import Any, cast
from urllib.parse import unquote

from mcp_rollout.gateway.schemas.subschemas import inner

ALL_TYPES = ["string", "integer", "number", "boolean", "object", "array", "null"]


def verl_parameters(input_schema: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a full input schema that verl 0.9.1's `OpenAIFunctionParametersSchema` accepts.

    That class requires a `type` on every top-level property and keeps only type, description and enum. `$ref`, `anyOf`,
    `oneOf`, `allOf`, `const` and `enum` are folded into the type; a property without any type gets all of them.
    """
    properties: dict[str, Any] = {}
    allowed = Types(input_schema)
    for name, schema in cast("Mapping[str, Any]", input_schema.get("properties") or {}).items():
        types = sorted(allowed.of(schema), key=ALL_TYPES.index) or ALL_TYPES
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


_FURTHEST = 100
"""Maximum depth of schemas in each other, and number of those that apply to the same object."""


class Types:
    """The JSON types that the schemas of one document allow; each reference is followed only once."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._found: dict[str, set[str]] = {}
        self._depth = 0

    def of(self, schema: Any) -> set[str]:
        """The types that a schema allows; empty if it does not restrict them."""
        if not isinstance(schema, Mapping) or self._depth >= _FURTHEST:
            return set()
        node = cast("Mapping[str, Any]", schema)
        self._depth += 1
        stated = [types for types in self._stated(node) if types]
        self._depth -= 1
        implied = {"object"} if "properties" in node else {"array"} if "items" in node else set[str]()
        # `number` and an enumeration of integers have no name in common.
        return reduce(lambda one, other: one & other or one, stated) if stated else implied

    def of_member(self, name: str) -> set[str] | None:
        """As `of`, for the member with this name of an object that fits the document; None if it has no schema."""
        parts, found = [self._root], list[Any]()
        for node in parts:  # grows by the schemas that apply to the same object
            own, others = node.get("properties"), node.get("additionalProperties")
            if isinstance(own, Mapping) and name in own:
                found.append(own[name])
            elif isinstance(others, Mapping):
                found.append(others)
            if len(parts) < _FURTHEST:
                further = [part for keyword in ("allOf", "anyOf", "oneOf") for part in _branches(node, keyword)]
                further.append(_target(node.get("$ref"), self._root))
                parts += [part for part in further if isinstance(part, Mapping)]
        return self.of({"allOf": found}) if found else None

    def _stated(self, node: Mapping[str, Any]) -> Iterator[set[str]]:
        """What each keyword of a schema allows."""
        if isinstance(reference := node.get("$ref"), str):
            if reference not in self._found:
                self._found[reference] = set()  # a reference to itself adds nothing
                self._found[reference] = self.of(_target(reference, self._root))
            yield self._found[reference]
        if isinstance(declared := node.get("type"), str | list):
            yield ({declared} if isinstance(declared, str) else {*map(str, cast("list[Any]", declared))}) & _KNOWN
        yield {type_of(value) for value in _enum(node)}
        for keyword in ("anyOf", "oneOf"):
            found = [self.of(branch) for branch in _branches(node, keyword)]
            yield set[str]().union(*found) if all(found) else set()
        yield from map(self.of, _branches(node, "allOf"))


def _branches(node: Mapping[str, Any], keyword: str) -> list[Any]:
    branches = node.get(keyword)
    return cast("list[Any]", branches) if isinstance(branches, list) else []


_KNOWN = frozenset(ALL_TYPES)


def type_of(value: object) -> str:
    """The JSON type of a value."""
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


def _target(reference: Any, root: Mapping[str, Any]) -> Any:
    """The schema that a reference within the document points to."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    here: Any = root
    for part in filter(None, unquote(reference[1:]).split("/")):
        here = inner(here, part.replace("~1", "/").replace("~0", "~"))
    return here
