"""Values that a JSON Schema allows: the arguments of a policy that knows only the schema."""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Any, TypeVar, cast

from jsonschema_rs import Validator, validator_for
from rstr import Rstr

from mcp_rollout.gateway.schemas.compiled import compiled_size, options

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
MAX_REPEATS = 8
"""Most repeats of an unbounded quantifier."""
MAX_PATTERN = 500
DRAWS = 20
_TOKEN = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|\{(\d{1,6}),\}|[*+]", re.DOTALL)
_Item = TypeVar("_Item")


def random_arguments(schema: Schema, rng: Random) -> dict[str, Any]:
    """Arguments for a tool with this input schema: all required ones, each optional one with even odds.

    Understands types, enum, const, bounds, common formats, patterns of ordinary size, `anyOf`/`oneOf`/`allOf` and local
    `$ref`.
    """
    return _Values(schema, rng).object(schema, 0)


def plain_arguments(schema: Schema, word: str) -> dict[str, Any]:
    """The same arguments every time, required ones only: `default` and `examples` where there are any, else the
    smallest value, and `word` for free text, unless a pattern forbids it."""
    return _Values(schema, Random(0), word).object(schema, 0)


def suggested_arguments(
    schema: Schema, word: str, suggest: Callable[[str, Schema], Any], wanted: Callable[[str, Schema], bool]
) -> dict[str, Any]:
    """Arguments as of `plain_arguments`, with values of the caller's own.

    Args:
        suggest: A value for an argument of this name and schema; None leaves it to the schema.
        wanted: Whether an optional argument of this name and schema is filled in.
    """
    return _Values(schema, Random(0), word, suggest, wanted).object(schema, 0)


@dataclass(frozen=True, slots=True)
class _Values:
    root: Schema
    rng: Random
    word: str | None = None
    """If given, every free string is this word, and every other value the first or the smallest."""
    suggest: Callable[[str, Schema], Any] = lambda _, __: None
    wanted: Callable[[str, Schema], bool] = lambda _, __: False

    def object(self, schema: Schema, depth: int) -> dict[str, Any]:
        schema = self._resolved(schema)
        required = set(schema.get("required", ()))
        return {
            name: self._value(inner, depth + 1, name)
            for name, inner in schema.get("properties", {}).items()
            if name in required
            or (self.word is None and depth < MAX_DEPTH and self.rng.random() < 0.5)
            or (self.word is not None and depth < MAX_DEPTH and self.wanted(name, inner))
        }

    def _value(self, schema: Schema, depth: int, name: str = "") -> Any:
        schema = self._resolved(schema)
        if (suggested := self.suggest(name, schema)) is not None:
            return suggested
        if "const" in schema:
            return schema["const"]
        if self.word is not None and "default" in schema:
            return schema["default"]
        if self.word is not None and schema.get("examples"):
            return schema["examples"][0]
        if "enum" in schema:
            return self._choice(list(schema["enum"]))
        if branches := schema.get("anyOf") or schema.get("oneOf"):
            # Too deep: prefer a branch that ends, such as null.
            ending = [branch for branch in branches if depth < MAX_DEPTH or "$ref" not in branch]
            return self._value(self._choice(ending or list(branches)), depth + 1, name)
        kinds: str | list[str] = schema.get("type", "object" if "properties" in schema else "string")
        match self._choice(kinds) if isinstance(kinds, list) else kinds:
            case "object":
                return self.object(schema, depth)
            case "array":
                low = int(schema.get("minItems", 0))
                high = low if depth >= MAX_DEPTH else min(int(schema.get("maxItems", low + MAX_ITEMS)), low + MAX_ITEMS)
                # An empty list asks a tool to do nothing.
                count = self.rng.randint(low, high) if self.word is None else min(max(low, 1), high)
                return [self._value(schema.get("items", {}), depth + 1, name) for _ in range(count)]
            case "integer":
                low, high = _bounds(schema, 1)
                return self.rng.randint(int(low), int(high)) if self.word is None else int(low)
            case "number":
                low, high = _bounds(schema, 0.01)
                return round(self.rng.uniform(low, high), 2) if self.word is None else low
            case "boolean":
                return self.rng.random() < 0.5 if self.word is None else False
            case "null":
                return None
            case _:
                return self._text(schema)

    def _text(self, schema: Schema) -> str:
        if schema.get("format") in FORMATS:
            return FORMATS[schema["format"]]
        low, word, pattern = int(schema.get("minLength", 1)), self.word, schema.get("pattern")
        high = None if schema.get("maxLength") is None else int(schema["maxLength"])
        if word is not None:
            word = word.ljust(low, "x")[: max(low, len(word)) if high is None else high]
        if pattern is not None and (word is None or not matches(word, pattern)):
            made = random_match(pattern, self.rng, low=int(schema.get("minLength", 0)), high=high)
            if made is not None:
                return made
        if word is not None:
            return word
        high = low + 8 if high is None else min(high, low + 8)
        return "".join(self.rng.choices(string.ascii_lowercase, k=self.rng.randint(low, max(low, high))))

    def _choice(self, choices: list[Any]) -> Any:
        return self.rng.choice(choices) if self.word is None else choices[0]

    def _resolved(self, schema: Schema) -> Schema:
        """The schema with `$ref` and `allOf` merged into it."""
        for _ in range(MAX_DEPTH):
            if "$ref" in schema:
                target: Any = self.root
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


class _InOrder(Random):
    """Draws the same in every process: rstr chooses from sets of characters, whose order differs between processes."""

    def choice(self, seq: Sequence[_Item]) -> _Item:  # pyright: ignore[reportIncompatibleMethodOverride]
        characters = all(isinstance(item, str) for item in seq)
        return super().choice(sorted(seq, key=str) if characters else seq)


def matches(text: str, pattern: str, *, low: int = 0, high: int | None = None) -> bool:
    """Whether the text has the length, in characters, and matches the pattern, by the engine that validates calls.

    Nothing matches a pattern that this engine cannot read.
    """
    if not low <= len(text) <= (len(text) if high is None else high):
        return False
    engine = _engine(pattern)
    return engine is not None and engine.is_valid(text)


def random_match(pattern: str, rng: Random, *, low: int = 0, high: int | None = None) -> str | None:
    """A text that `matches`; None where the pattern is too large or unsupported, or all draws have other lengths.

    Counted repeats go up to 100.
    """
    bounded = _TOKEN.sub(_bounded, pattern)
    if len(pattern) > MAX_PATTERN or compiled_size(bounded) is None or _engine(pattern) is None:
        return None
    draw = Rstr(_InOrder(rng.getrandbits(64)))
    try:
        made = (draw.xeger(bounded) for _ in range(DRAWS))
        return next((text for text in made if matches(text, pattern, low=low, high=high)), None)
    except (re.error, ArithmeticError, LookupError, ValueError, RecursionError):
        return None  # rstr reads a part of Python's dialect


@lru_cache(maxsize=256)
def _engine(pattern: str) -> Validator | None:
    size = compiled_size(pattern)
    return None if size is None else validator_for({"pattern": pattern}, pattern_options=options(size))


def _bounded(token: re.Match[str]) -> str:
    """The token, an unbounded quantifier limited to `MAX_REPEATS` more than its minimum."""
    if token.group(1) is not None:
        return f"{token.group()[:-1]}{int(token.group(1)) + MAX_REPEATS}}}"
    return {"*": f"{{0,{MAX_REPEATS}}}", "+": f"{{1,{MAX_REPEATS}}}"}.get(token.group(), token.group())
