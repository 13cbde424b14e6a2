"""Which schemas a JSON Schema document applies to a value, and a bound on that work before any validation runs.

A schema counts as often as it is applied, so references that fan out cannot make a short document expensive unnoticed.
Nothing is fetched: if a reference does not point into the same document, the schema is `Unchecked`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast
from urllib.parse import unquote

from mcp_rollout.gateway.schemas.extent import measure

_MOST_OBJECTS = 5000
"""Maximum objects in one document."""
_MOST_APPLIED = 3000
"""Maximum schemas that are applied to a value and its parts, each counted once for each depth."""
_MOST_STACKED = 250
"""Maximum schemas that are applied within each other, down to the deepest part of a value."""
_ENORMOUS = 1 << 40
_REFERENCES = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})
UNEVALUATED = frozenset({"unevaluatedItems", "unevaluatedProperties"})
_HERE = UNEVALUATED | frozenset("allOf anyOf oneOf not if then else dependentSchemas dependencies".split())
"""Applied to the same value, or as costly to compile as if they were."""
_BELOW = frozenset(
    "items prefixItems additionalItems contains properties additionalProperties patternProperties propertyNames".split()
)
"""Applied to items, members or names."""
_BY_NAME = frozenset({"properties", "patternProperties", "dependentSchemas", "dependencies"})
"""Keywords whose value is a mapping of names to schemas; all others have one schema or a list of them."""
_LISTED = frozenset({"enum", "const", "required", "dependentRequired"})
_DIVISION_STEPS, _MAGNITUDE_STEPS = 200, 4
"""Dividing by a `multipleOf` takes as long as that many other steps, and so many for each power of ten in it."""
_BYTES_A_STEP = 256
"""Bytes of a compiled regular expression that hold up each character as long as one other step."""


class Unchecked(Exception):
    """Raised for a schema against which nothing is validated; the message is for the schema's author."""


class Work(NamedTuple):
    """An upper bound on the work for each part of a value."""

    steps: int
    """Keywords and schema values to evaluate for each value."""
    text: int
    """Steps of regular expressions for each character."""


class Document:
    """One schema document.

    Raises:
        Unchecked: a part of it has an `$id`, or it has more than `_MOST_OBJECTS` objects.
    """

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._address = root.get("$id")
        self._anchors: dict[str, list[Any]] = {}
        self.parts = list(_objects(root))
        """Every object in the document, the root first."""
        for part in self.parts:
            if part is not root and isinstance(part.get("$id"), str):
                raise Unchecked("a part of it has its own address ($id)")
            for keyword in ("$anchor", "$dynamicAnchor"):
                if isinstance(name := part.get(keyword), str):
                    self._anchors.setdefault(name, []).append(part)

    def work(self, sizes: Mapping[str, int], depth: int = 0, schemas: Sequence[Any] | None = None) -> Work:
        """The work of applying `schemas` (the root) to a value that is nested `depth` deep.

        Args:
            sizes: Of the compiled regular expressions, in bytes.

        Raises:
            Unchecked: a reference points out of the document or to nothing, a schema applies itself to the same value,
                or there are more schemas than the bounds above.
        """
        known: dict[tuple[int, int], Work] = {}
        found = [self._work(each, depth, 0, known, sizes) for each in ([self._root] if schemas is None else schemas)]
        return Work(sum(each.steps for each in found), sum(each.text for each in found))

    def _work(self, schema: Any, depth: int, above: int, known: dict[tuple[int, int], Work], sizes: Any) -> Work:
        if not isinstance(schema, Mapping):
            return Work(0, 0)  # true, false, or not a schema at all, which the compiler reports
        place = id(cast("object", schema)), depth
        if place in known:
            return known[place]
        if above == _MOST_STACKED:
            raise Unchecked(f"it applies more than {_MOST_STACKED} schemas within each other, or itself endlessly")
        if len(known) >= _MOST_APPLIED:
            raise Unchecked(f"it applies more than {_MOST_APPLIED} schemas")
        keywords = cast("Mapping[str, Any]", schema)
        steps, text = _own(keywords, sizes)
        for keyword, value in keywords.items():
            if keyword in _REFERENCES:
                inner = [self._target(value)]
            elif keyword in _HERE or (depth and keyword in _BELOW):
                inner = _schemas(keyword, value)
            else:
                continue
            at = depth - (keyword in _BELOW)
            found = [(0, 0), *[self._work(each, at, above + 1, known, sizes) for each in inner]]
            # A path into a value meets one member at a time, so those with different names do not add up.
            total = max if keyword == "properties" else sum
            steps += total(each[0] for each in found)
            text += total(each[1] for each in found)
        known[place] = Work(min(steps, _ENORMOUS), min(text, _ENORMOUS))
        return known[place]

    def _target(self, reference: Any) -> Any:
        """What a reference points to. Raises `Unchecked` if that is not one place in this document."""
        address, _, fragment = str(reference).partition("#")
        here: Any = self._root
        if not fragment.startswith("/") and fragment:
            anchored = self._anchors.get(unquote(fragment), [])
            here = anchored[0] if len(anchored) == 1 else None
        for step in unquote(fragment).split("/")[1:]:
            here = inner(here, step.replace("~1", "/").replace("~0", "~"))
        if address not in ("", self._address) or not isinstance(here, Mapping | bool):
            raise Unchecked(f"it refers to nothing in its own document: {str(reference)[:80]!r}")
        return cast("Any", here)


def _objects(root: Mapping[str, Any]) -> Iterator[Mapping[Any, Any]]:
    todo: list[Any] = [root]
    found = 0
    for value in todo:  # grows while it is read
        if isinstance(value, Mapping):
            if found == _MOST_OBJECTS:
                raise Unchecked(f"it has more than {_MOST_OBJECTS} objects in it")
            found += 1
            yield (here := cast("Mapping[Any, Any]", value))
            todo += here.values()
        elif isinstance(value, list):
            todo += value


def _own(schema: Mapping[str, Any], sizes: Mapping[str, int]) -> tuple[int, int]:
    """Steps and text of a schema itself, without its subschemas."""
    steps = 1 + len(schema)
    for keyword, value in schema.items():
        if keyword in _LISTED:
            steps += measure(value).nodes
        elif isinstance(value, Mapping | list):
            steps += len(cast("list[Any]", value))
        if keyword == "multipleOf" and isinstance(value, int | float):
            steps += _DIVISION_STEPS + _MAGNITUDE_STEPS * _magnitude(value)
    stated, names = patterns_of(schema)
    return steps, sum(sizes[each] // _BYTES_A_STEP for each in stated + names)


def patterns_of(schema: Mapping[Any, Any]) -> tuple[list[str], list[str]]:
    """The regular expressions of a schema itself, for texts and for names."""
    stated, by_name = schema.get("pattern"), schema.get("patternProperties")
    names = map(str, cast("Mapping[Any, Any]", by_name)) if isinstance(by_name, Mapping) else ()
    return [stated] if isinstance(stated, str) else [], list(names)


def _magnitude(number: float) -> int:
    """Powers of ten in a number, of either sign: the engine divides exactly, with as many digits."""
    if isinstance(number, int):
        return number.bit_length() // 3
    return abs(math.frexp(number)[1]) // 3 if math.isfinite(number) else 0


def _schemas(keyword: str, value: Any) -> list[Any]:
    if keyword in _BY_NAME:
        return list(cast("Mapping[Any, Any]", value).values()) if isinstance(value, Mapping) else []
    return cast("list[Any]", value) if isinstance(value, list) else [value]


def inner(value: Any, step: str) -> Any:
    """What a JSON pointer's next step leads to; None if there is nothing."""
    if isinstance(value, Mapping):
        return cast("Mapping[str, Any]", value).get(step)
    if isinstance(value, list) and step.isdecimal() and int(step) < len(cast("list[Any]", value)):
        return cast("list[Any]", value)[int(step)]
    return None


def needed_definitions(schema: Mapping[str, Any], keyword: str, definitions: Mapping[str, Any]) -> dict[str, Any]:
    """The `definitions` that the rest of a document refers to, directly or through each other; all if unsure."""
    prefix = f"#/{keyword}/"
    todo = list(_references({name: part for name, part in schema.items() if name != keyword}))
    found: set[str] = set()
    while todo:
        reference = todo.pop()
        name = reference.removeprefix(prefix).split("/")[0]
        if not reference.startswith(prefix):
            return dict(definitions)  # an anchor, or the root itself: its needs are unknown here
        if name in definitions and name not in found:
            found.add(name)
            todo += _references(definitions[name])
    return {name: part for name, part in definitions.items() if name in found}


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, Mapping):
        for name, inner in cast("Mapping[str, Any]", schema).items():
            if name in ("$ref", "$dynamicRef") and isinstance(inner, str):
                yield inner
            yield from _references(inner)
    elif isinstance(schema, list):
        for inner in cast("list[Any]", schema):
            yield from _references(inner)
