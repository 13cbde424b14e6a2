"""Reduce a tool's input schema to what verl's own schema class accepts: each argument's type, description and enum."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce
from typing import Any, cast
from urllib.parse import unquote

from gateway.schemas.subschemas import inner

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
"""Maximum depth of schemas in each other, by references or in place."""
_IMPLIED = {
    "object": {"properties"},
    "array": {"items"},
    "string": {"pattern", "minLength", "maxLength"},
}
"""By type, keywords that say nothing of any other: the type of a schema that states none."""


class Types:
    """The JSON types that the schemas of one document allow; each reference is followed only once."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._found: dict[str, set[str] | None] = {}
        self._depth = 0

    def of(self, schema: Any) -> set[str]:
        """The types that a schema allows; empty if it does not restrict them."""
        return self._of(schema) or set()

    def of_member(self, name: str) -> set[str] | None:
        """As `of`, for the member with this name of an object that fits the document; None if it has no schema."""
        schemas = list(self._members(self._root, name, set()))
        return self.of({"allOf": schemas}) if schemas else None

    def _of(self, schema: Any) -> set[str] | None:
        """As `of`; None if a schema says no more than that it is itself, which restricts nothing beside it."""
        if not isinstance(schema, Mapping) or self._depth >= _FURTHEST:
            return set()
        node = cast("Mapping[str, Any]", schema)
        self._depth += 1
        stated = list(self._stated(node))
        self._depth -= 1
        if known := [types for types in stated if types]:
            return reduce(_both, known)
        implied = {kind for kind, keywords in _IMPLIED.items() if not keywords.isdisjoint(node)}
        return implied or (None if stated and all(types is None for types in stated) else set())

    def _stated(self, node: Mapping[str, Any]) -> Iterator[set[str] | None]:
        """What each keyword of a schema allows."""
        if isinstance(reference := node.get("$ref"), str):
            if reference not in self._found:
                self._found[reference] = None
                self._found[reference] = self._of(_target(reference, self._root))
            yield self._found[reference]
        if isinstance(declared := node.get("type"), str | list):
            yield ({declared} if isinstance(declared, str) else {*map(str, cast("list[Any]", declared))}) & _KNOWN
        if values := _enum(node):
            yield {type_of(value) for value in values}
        for keyword in ("anyOf", "oneOf"):
            if isinstance(node.get(keyword), list):
                found = [types for branch in _branches(node, keyword) if (types := self._of(branch)) is not None]
                yield (set[str]().union(*found) if all(found) else set()) if found else None
        yield from map(self._of, _branches(node, "allOf"))

    def _members(self, schema: Any, name: str, followed: set[str], depth: int = 0) -> Iterator[Any]:
        """The schemas of a member: those under its name, or else those of all members without one."""
        if not isinstance(schema, Mapping) or depth >= _FURTHEST:
            return
        node = cast("Mapping[str, Any]", schema)
        own, others = node.get("properties"), node.get("additionalProperties")
        if isinstance(own, Mapping) and name in own:
            yield own[name]
        elif isinstance(others, Mapping):
            yield others
        parts = [part for keyword in ("allOf", "anyOf", "oneOf") for part in _branches(node, keyword)]
        if isinstance(reference := node.get("$ref"), str) and reference not in followed:
            followed.add(reference)
            parts.append(_target(reference, self._root))
        for part in parts:
            yield from self._members(part, name, followed, depth + 1)


def _both(one: set[str], other: set[str]) -> set[str]:
    """The types that two schemas allow together. Each integer is a number."""
    one, other = ({*types, "integer"} if "number" in types else types for types in (one, other))
    return one & other - ({"integer"} if "number" in one & other else set())


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


def _target(reference: str, root: Mapping[str, Any]) -> Any:
    here: Any = root if reference[:1] == "#" else None
    for part in filter(None, unquote(reference).removeprefix("#").split("/")):
        here = inner(here, part.replace("~1", "/").replace("~0", "~"))
    return here
