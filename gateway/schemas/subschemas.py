"""A JSON Schema as a graph: which schemas it applies to a value, to its items and to its members.

Only schemas reachable from the root are in the graph, since no others are applied. Nothing is fetched: if a reference
does not point into the same document, the schema is `Unchecked`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import unquote

MOST_SCHEMAS = 2000
"""Maximum reachable schemas in one document."""
_REFERENCES = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})
_HERE = frozenset({"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies"})
_ITEMS = frozenset({"items", "prefixItems", "additionalItems", "unevaluatedItems", "contains"})
_MEMBERS = frozenset({"additionalProperties", "patternProperties", "unevaluatedProperties", "propertyNames"})
_PARTS: Any = (dict, list)
_BY_NAME = frozenset({"properties", "patternProperties", "dependentSchemas", "dependencies"})
"""Keywords whose value is a mapping of names to schemas; all others have one schema or a list of them."""


class Unchecked(Exception):
    """Raised for a schema against which nothing is validated; the message is for the schema's author."""


@dataclass(slots=True)
class Node:
    """One schema, and the indices of its subschemas by what they apply to."""

    keywords: Mapping[str, Any]
    place: tuple[str, ...]
    """Steps from the root."""
    here: list[int] = field(default_factory=list[int])
    """Applied to the same value."""
    items: list[int] = field(default_factory=list[int])
    members: list[int] = field(default_factory=list[int])
    """Applied to all members of an object, or to their names."""
    named: list[int] = field(default_factory=list[int])
    """Each applied to the member with one name."""


def read_graph(schema: Mapping[str, Any]) -> list[Node]:
    """Read the graph, the root first.

    Raises:
        Unchecked: a reference points out of the document or to nothing, a part of the document has an `$id`, or there
            are more than `MOST_SCHEMAS` schemas.
    """
    document = Document(schema)
    nodes = [Node(schema, ())]
    index: dict[tuple[str, ...], int] = {(): 0}

    def add(place: tuple[str, ...], found: Any) -> list[int]:
        if not isinstance(found, Mapping):
            return []  # true, false, or not a schema at all, which the compiler reports
        if place not in index:
            if len(nodes) == MOST_SCHEMAS:
                raise Unchecked(f"it has more than {MOST_SCHEMAS} schemas in it")
            index[place] = len(nodes)
            nodes.append(Node(cast("Mapping[str, Any]", found), place))
        return [index[place]]

    for node in nodes:  # grows while it is read
        for keyword, value in node.keywords.items():
            if keyword in _REFERENCES:
                node.here += add(*document.target(value))
                continue
            for step, inner in _schemas(keyword, value):
                found = add((*node.place, keyword, *step), inner)
                if keyword == "properties":
                    node.named += found
                elif keyword in _HERE:
                    node.here += found
                elif keyword in _ITEMS:
                    node.items += found
                else:
                    node.members += found
    return nodes


def _schemas(keyword: str, value: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The schemas in the value of a keyword, with the steps from the keyword to each."""
    if keyword in _BY_NAME:
        if isinstance(value, Mapping):
            yield from (((str(name),), inner) for name, inner in cast("Mapping[Any, Any]", value).items())
    elif keyword in _HERE or keyword in _ITEMS or keyword in _MEMBERS:
        if isinstance(value, list):
            yield from (((str(number),), inner) for number, inner in enumerate(cast("list[Any]", value)))
        else:
            yield (), value


class Document:
    """Resolves references within one document. Raises `Unchecked` if a part of it has an `$id`."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._address = root.get("$id")
        self._anchors: dict[str, list[tuple[tuple[str, ...], Any]]] = {}
        self._look_through()

    def _look_through(self) -> None:
        todo: list[tuple[tuple[str, ...], Any]] = [((), self._root)]
        while todo:
            place, value = todo.pop()
            if isinstance(value, list):
                items = enumerate(cast("list[Any]", value))
                todo += [((*place, str(number)), inner) for number, inner in items if isinstance(inner, _PARTS)]
            elif isinstance(value, Mapping):
                here = cast("Mapping[Any, Any]", value)
                if place and isinstance(here.get("$id"), str):
                    raise Unchecked("a part of it has its own address ($id)")
                for keyword in ("$anchor", "$dynamicAnchor"):
                    if isinstance(name := here.get(keyword), str):
                        self._anchors.setdefault(name, []).append((place, here))
                todo += [((*place, str(name)), inner) for name, inner in here.items() if isinstance(inner, _PARTS)]

    def target(self, reference: Any) -> tuple[tuple[str, ...], Any]:
        """The place and value that a reference points to. Raises `Unchecked`."""
        address, _, fragment = str(reference).partition("#")
        if address and address != self._address:
            raise Unchecked(f"it refers to another document: {str(reference)[:80]!r}")
        fragment = unquote(fragment)
        if fragment and not fragment.startswith("/"):
            found = self._anchors.get(fragment, [])
            if len(found) != 1:
                raise Unchecked(f"it refers to an anchor that occurs {len(found)} times: {fragment[:80]!r}")
            return found[0]
        here: Any = self._root
        steps = tuple(step.replace("~1", "/").replace("~0", "~") for step in fragment.split("/")[1:])
        for step in steps:
            here = inner(here, step)
        if not isinstance(here, Mapping | bool):
            raise Unchecked(f"it has a reference to nothing: {str(reference)[:80]!r}")
        return steps, cast("Any", here)


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
