"""Reduce a tool's input schema to what verl's own schema class accepts: each argument's type, description and enum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

ALL_TYPES = ["string", "integer", "number", "boolean", "object", "array", "null"]


def verl_parameters(input_schema: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a full input schema that verl 0.9.1's `OpenAIFunctionParametersSchema` accepts.

    That class requires a `type` on every top-level property and keeps only type, description and enum. `$ref`, `anyOf`,
    `oneOf`, `allOf`, `const` and `enum` are folded into the type; a property without any type gets all of them.
    """
    properties: dict[str, Any] = {}
    allowed = _Types(input_schema)
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


_FURTHEST = 50
"""Maximum length of a chain of references."""


class _Types:
    """The JSON types that the schemas of one document allow; each reference is followed only once."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._found: dict[str, set[str]] = {}
        self._following = 0

    def of(self, schema: Any) -> set[str]:
        """The types that a schema allows; empty if it does not restrict them."""
        if not isinstance(schema, Mapping):
            return set()
        node = cast("Mapping[str, Any]", schema)
        reference = node.get("$ref")
        if isinstance(reference, str):
            if reference not in self._found:
                self._found[reference] = set()  # a reference to itself adds nothing
                self._following += 1
                if self._following <= _FURTHEST:
                    self._found[reference] = self.of(_target(reference, self._root))
                self._following -= 1
            return self._found[reference]
        declared = node.get("type")
        if isinstance(declared, str | list):
            names = {declared} if isinstance(declared, str) else {str(name) for name in cast("list[Any]", declared)}
            return names & _KNOWN
        if values := _enum(node):
            return {_type_of(value) for value in values}
        for keyword in ("anyOf", "oneOf"):
            if isinstance(branches := node.get(keyword), list):
                found = [self.of(branch) for branch in cast("list[Any]", branches)]
                return set[str]().union(*found) if all(found) else set()
        if isinstance(branches := node.get("allOf"), list):
            known = [types for branch in cast("list[Any]", branches) if (types := self.of(branch))]
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
