"""Random values that a JSON Schema allows: what a policy that knows only the schema would write."""

from __future__ import annotations

import random
import string
from collections.abc import Mapping
from typing import Any, cast

MAX_ITEMS = 3
MAX_DEPTH = 6

Schema = Mapping[str, Any]


def random_arguments(schema: Schema, rng: random.Random) -> dict[str, Any]:
    """Arguments for a tool with this input schema: all required ones, each optional one with even odds.

    Understands types, enum, const, bounds, `anyOf`/`oneOf`/`allOf` and local `$ref`; not patterns or formats.
    """
    return _object(schema, schema, rng, 0)


def _value(schema: Schema, root: Schema, rng: random.Random, depth: int) -> Any:
    schema = _resolve(schema, root)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return rng.choice(list(schema["enum"]))
    for key in ("anyOf", "oneOf"):
        if key in schema:
            # Too deep: prefer a branch that ends, such as null.
            branches = [branch for branch in schema[key] if depth < MAX_DEPTH or "$ref" not in branch] or schema[key]
            return _value(rng.choice(list(branches)), root, rng, depth + 1)
    kinds: str | list[str] = schema.get("type", "object" if "properties" in schema else "string")
    match rng.choice(kinds) if isinstance(kinds, list) else kinds:
        case "object":
            return _object(schema, root, rng, depth)
        case "array":
            low = int(schema.get("minItems", 0))
            high = low if depth >= MAX_DEPTH else min(int(schema.get("maxItems", low + MAX_ITEMS)), low + MAX_ITEMS)
            return [_value(schema.get("items", {}), root, rng, depth + 1) for _ in range(rng.randint(low, high))]
        case "integer":
            low, high = _bounds(schema, 1)
            return rng.randint(int(low), int(high))
        case "number":
            return round(rng.uniform(*_bounds(schema, 0.01)), 2)
        case "boolean":
            return rng.random() < 0.5
        case "null":
            return None
        case _:
            low = int(schema.get("minLength", 1))
            high = int(schema.get("maxLength", low + 8))
            return "".join(rng.choices(string.ascii_lowercase, k=rng.randint(low, max(low, min(high, low + 8)))))


def _object(schema: Schema, root: Schema, rng: random.Random, depth: int) -> dict[str, Any]:
    schema = _resolve(schema, root)
    required = set(schema.get("required", ()))
    return {
        name: _value(inner, root, rng, depth + 1)
        for name, inner in schema.get("properties", {}).items()
        if name in required or (depth < MAX_DEPTH and rng.random() < 0.5)
    }


def _resolve(schema: Schema, root: Schema) -> Schema:
    for _ in range(MAX_DEPTH):
        if "$ref" in schema:
            target: Any = root
            for part in str(schema["$ref"]).removeprefix("#/").split("/"):
                target = cast("Schema", target).get(part) or {}
            schema = {**target, **{key: value for key, value in schema.items() if key != "$ref"}}
        elif "allOf" in schema:
            merged: dict[str, Any] = {key: value for key, value in schema.items() if key != "allOf"}
            for part in schema["allOf"]:
                merged |= part
            schema = merged
        else:
            break
    return schema


def _bounds(schema: Schema, step: float) -> tuple[float, float]:
    low = schema.get("minimum", schema["exclusiveMinimum"] + step if "exclusiveMinimum" in schema else None)
    high = schema.get("maximum", schema["exclusiveMaximum"] - step if "exclusiveMaximum" in schema else None)
    if low is None:
        low = 0 if high is None else min(0, high)
    return low, max(low, 100 if high is None else high)
