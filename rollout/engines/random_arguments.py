"""Values that a JSON Schema allows: what a policy that knows only the schema would write."""

from __future__ import annotations

import random
import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from rollout.engines.patterned import fits, matching

MAX_ITEMS = 3
MAX_DEPTH = 6

FORMATS = {
    "date": "2024-05-17",
    "time": "12:30:00Z",
    "date-time": "2024-05-17T12:30:00Z",
    "email": "someone@example.com",
    "uri": "https://example.com/",
    "uuid": "7f9c24e8-3b12-4fef-91e0-55a3d63f5a2b",
}

Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Draw:
    """How a value is chosen where the schema leaves a choice."""

    rng: random.Random
    word: str | None = None
    """Where given: every free string is this word, every other value the first or the smallest."""


def random_arguments(schema: Schema, rng: random.Random) -> dict[str, Any]:
    """Arguments for a tool with this input schema: all required ones, each optional one with even odds.

    Understands types, enum, const, bounds, common formats, patterns of ordinary size, `anyOf`/`oneOf`/`allOf` and local
    `$ref`.
    """
    return _object(schema, schema, _Draw(rng), 0)


def plain_arguments(schema: Schema, word: str) -> dict[str, Any]:
    """The same arguments every time, required ones only: `default` and `examples` where there are any, else the
    smallest value, and `word` for free text, unless a pattern forbids it."""
    return _object(schema, schema, _Draw(random.Random(0), word), 0)


def _value(schema: Schema, root: Schema, draw: _Draw, depth: int) -> Any:
    schema = _resolve(schema, root)
    if "const" in schema:
        return schema["const"]
    if draw.word is not None and "default" in schema:
        return schema["default"]
    if draw.word is not None and schema.get("examples"):
        return schema["examples"][0]
    if "enum" in schema:
        return _one(list(schema["enum"]), draw)
    for key in ("anyOf", "oneOf"):
        if key in schema:
            # Too deep: prefer a branch that ends, such as null.
            branches = [branch for branch in schema[key] if depth < MAX_DEPTH or "$ref" not in branch] or schema[key]
            return _value(_one(list(branches), draw), root, draw, depth + 1)
    kinds: str | list[str] = schema.get("type", "object" if "properties" in schema else "string")
    match _one(kinds, draw) if isinstance(kinds, list) else kinds:
        case "object":
            return _object(schema, root, draw, depth)
        case "array":
            low = int(schema.get("minItems", 0))
            high = low if depth >= MAX_DEPTH else min(int(schema.get("maxItems", low + MAX_ITEMS)), low + MAX_ITEMS)
            # An empty list asks a tool to do nothing.
            count = draw.rng.randint(low, high) if draw.word is None else min(max(low, 1), high)
            return [_value(schema.get("items", {}), root, draw, depth + 1) for _ in range(count)]
        case "integer":
            low, high = _bounds(schema, 1)
            return draw.rng.randint(int(low), int(high)) if draw.word is None else int(low)
        case "number":
            low, high = _bounds(schema, 0.01)
            return round(draw.rng.uniform(low, high), 2) if draw.word is None else low
        case "boolean":
            return draw.rng.random() < 0.5 if draw.word is None else False
        case "null":
            return None
        case _:
            return _text(schema, draw)


def _text(schema: Schema, draw: _Draw) -> str:
    if schema.get("format") in FORMATS:
        return FORMATS[schema["format"]]
    low = int(schema.get("minLength", 1))
    most = None if schema.get("maxLength") is None else int(schema["maxLength"])
    word = (
        None if draw.word is None else draw.word.ljust(low, "x")[: max(low, len(draw.word)) if most is None else most]
    )
    pattern = schema.get("pattern")
    if pattern is not None and (word is None or not fits(word, pattern)):
        made = matching(pattern, draw.rng, low=int(schema.get("minLength", 0)), high=most)
        if made is not None:
            return made
    if word is not None:
        return word
    high = low + 8 if most is None else min(most, low + 8)
    return "".join(draw.rng.choices(string.ascii_lowercase, k=draw.rng.randint(low, max(low, high))))


def _one(choices: list[Any], draw: _Draw) -> Any:
    return draw.rng.choice(choices) if draw.word is None else choices[0]


def _object(schema: Schema, root: Schema, draw: _Draw, depth: int) -> dict[str, Any]:
    schema = _resolve(schema, root)
    required = set(schema.get("required", ()))
    return {
        name: _value(inner, root, draw, depth + 1)
        for name, inner in schema.get("properties", {}).items()
        if name in required or (draw.word is None and depth < MAX_DEPTH and draw.rng.random() < 0.5)
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
