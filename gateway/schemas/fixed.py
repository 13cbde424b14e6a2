"""Remove fixed arguments from an input schema, so that the policy sees only the arguments it chooses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from gateway.schemas.check import check_value
from gateway.schemas.subschemas import needed_definitions

_DEFINITIONS = ("$defs", "definitions")
_REFERENCE_TARGETS = ("$schema", "$id", *_DEFINITIONS, "properties")
"""Root keywords that an argument's own schema may refer to."""
_CONDITIONS = frozenset(
    "allOf anyOf oneOf not if then else dependentRequired dependentSchemas dependencies propertyNames minProperties "
    "maxProperties enum const $ref $dynamicRef $recursiveRef".split()
)
"""Root keywords whose outcome may depend on which arguments are present. Evaluating them for known values would need a
partial evaluator of JSON Schema; a schema with one of them is refused instead."""


class CannotHide(Exception):
    """Raised for a schema that relates its arguments to each other; the message names the keyword."""


def accepts_argument(schema: Mapping[str, Any], name: str, value: Any) -> bool:
    """Whether the argument `name` may have this value by its own schema, whatever the other arguments are."""
    alone = {keyword: schema[keyword] for keyword in _REFERENCE_TARGETS if keyword in schema}
    return not check_value(alone, {name: value}, subject=f"fixed argument {name}")


def without(schema: Mapping[str, Any], fixed: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of an input schema without the arguments in `fixed` and without definitions that only they refer to.

    Raises:
        CannotHide: the root has a keyword that relates arguments to each other.
    """
    if conditions := sorted(_CONDITIONS & schema.keys()):
        raise CannotHide(f"the schema has {conditions[0]!r} at its root, which may depend on it")
    left: dict[str, Any] = dict(schema)
    properties = cast("Mapping[str, Any]", schema.get("properties") or {})
    left["properties"] = {name: own for name, own in properties.items() if name not in fixed}
    if isinstance(required := schema.get("required"), list):
        left["required"] = [name for name in cast("list[Any]", required) if name not in fixed]
        if not left["required"]:
            del left["required"]
    if "default" in schema:
        left["default"] = _without_members(schema["default"], fixed)
    if isinstance(examples := schema.get("examples"), list):
        left["examples"] = [_without_members(example, fixed) for example in cast("list[Any]", examples)]
    for keyword in _DEFINITIONS:
        if isinstance(definitions := left.pop(keyword, None), Mapping):
            kept = needed_definitions(left, keyword, cast("Mapping[str, Any]", definitions))
            if kept:
                left[keyword] = kept
    return left


def _without_members(value: Any, names: Mapping[str, Any]) -> Any:
    if not isinstance(value, Mapping):
        return value
    return {name: inner for name, inner in cast("Mapping[str, Any]", value).items() if name not in names}
