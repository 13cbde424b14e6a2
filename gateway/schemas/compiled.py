"""A JSON Schema as a compiled program whose time and memory are bounded before it runs.

Schemas are the servers', values the policy's or the servers', so both are hostile until they are measured. A schema
that cannot be bounded is `Unchecked`: nothing is checked against it and its tool works like any other.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, cast

import structlog
from jsonschema_rs import ReferencingError, RegexOptions, ValidationError, Validator, validator_for

from gateway.schemas.cost import Costs, measure, too_large
from gateway.schemas.subschemas import Node, Unchecked, read_graph

log = structlog.get_logger(__name__)

MOST_EFFORT = 5_000_000
"""Steps for one value: about half a second of the worst schema, and far beyond what real ones take."""
MOST_WORDED = 30_000
"""Steps up to which every fault is worded; wording takes memory, some kilobytes for a step."""
_MOST_STACKED = 2000
"""Schemas within schemas, of which the checker's stack holds each: it crashes with the program at fifty times that."""
_MOST_PATTERN_BYTES = 8 << 20
"""For all regular expressions of one schema, as `gateway.schemas.patterns` counts them."""
_MOST_UNEVALUATED = 50_000
"""Steps in schemas with `unevaluated...`, for which everything they apply is compiled once more."""
_NODE_BYTES = 4096
_KEPT_BYTES = 64 << 20
_DIALECTS = ("draft-04/schema", "draft-06/schema", "draft-07/schema", "draft/2019-09/schema", "draft/2020-12/schema")


SIZES = (32 << 10, 256 << 10, 1 << 20)
"""What one compiled expression may take, in bytes; the first that is enough is what it is counted as."""


class TooMuch(Exception):
    """Checking this value could take more than `MOST_EFFORT` steps."""


class Program:
    """One schema, compiled.

    Raises:
        Unchecked: it is no valid schema, or its cost has no bound.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        if problem := too_large(schema):
            raise Unchecked(problem)
        nodes = read_graph(schema)
        self._costs = Costs(nodes)
        unevaluated = [
            cost.steps
            for node, cost in zip(nodes, self._costs.flat, strict=True)
            if {"unevaluatedProperties", "unevaluatedItems"} & node.keywords.keys()
        ]
        if sum(unevaluated) > _MOST_UNEVALUATED:
            raise Unchecked("what its `unevaluated...` keywords refer to expands too far")
        pattern_bytes, largest, self.left_out = _weigh_patterns(nodes)
        self.weight = pattern_bytes + _NODE_BYTES * len(nodes)
        """Bytes that this is counted as."""
        self._schema = _without_patterns(schema, self.left_out)
        self._validator = _compile(self._schema, largest)

    def names_beside(self, path: Sequence[str | int]) -> list[str]:
        """The names under `properties` of the schema that has the keyword at `path`."""
        here: Any = self._schema
        for step in path[:-1]:
            here = here[step]
        return list(here.get("properties", ()))

    def fits(self, value: Any) -> bool:
        """Whether `value` was checked and nothing is wrong with it: the quick way, for almost every call."""
        try:
            return self.effort(value)[0] <= MOST_EFFORT and self._validator.is_valid(value)
        except ValueError:
            return False

    def effort(self, value: Any) -> tuple[int, int]:
        """Most steps that checking `value` can take, and how many of them are more to word. Raises as `errors` does."""
        nodes, characters, depth = measure(value)
        cost = self._costs.at(depth)
        if cost.depth > _MOST_STACKED:
            return MOST_EFFORT + 1, MOST_EFFORT + 1
        steps = cost.steps * nodes
        return steps + cost.text * characters, steps

    def errors(self, value: Any) -> list[ValidationError] | None:
        """What is wrong with `value`; None where something is and it is too large to say what.

        Raises:
            TooMuch: nothing was checked.
            ValueError: it is no JSON value, or one nested more than 100 deep.
        """
        effort, to_word = self.effort(value)
        if effort > MOST_EFFORT:
            raise TooMuch(f"up to {effort} steps, and the most is {MOST_EFFORT}")
        if self._validator.is_valid(value):
            return []
        return list(self._validator.iter_errors(value)) if to_word <= MOST_WORDED else None


def options(size: int) -> RegexOptions:
    return RegexOptions(size_limit=size, dfa_size_limit=size)


def compiled_size(pattern: str, room: int) -> int | None:
    """How many bytes a pattern is counted as, at most `room`; None where it is not linear or needs more."""
    for size in SIZES:
        if size > room:
            return None
        try:
            validator_for({"pattern": pattern}, offline=True, pattern_options=options(size))
        except (ValidationError, ValueError):
            continue
        return size
    return None


def _weigh_patterns(nodes: Sequence[Node]) -> tuple[int, int, list[Node]]:
    """Bytes for all patterns, bytes for the largest, and the schemas whose own pattern is not linear or too large."""
    total, largest, left_out = 0, SIZES[0], list[Node]()
    for node in nodes:
        stated = node.keywords.get("pattern")
        by_name: Any = node.keywords.get("patternProperties")
        names = [str(name) for name in cast("Mapping[Any, Any]", by_name)] if isinstance(by_name, Mapping) else []
        for pattern in [stated] if isinstance(stated, str) else []:
            size = compiled_size(pattern, _MOST_PATTERN_BYTES - total)
            if size is None:
                left_out.append(node)
            total, largest = total + (size or 0), max(largest, size or 0)
        for pattern in names:
            size = compiled_size(pattern, _MOST_PATTERN_BYTES - total)
            if size is None:
                # Which members it is about decides what the other keywords are about.
                raise Unchecked(f"a pattern for names is not linear, or too large: {pattern[:80]!r}")
            total, largest = total + size, max(largest, size)
    return total, largest, left_out


def _without_patterns(schema: Mapping[str, Any], left_out: Sequence[Node]) -> dict[str, Any]:
    copied: dict[str, Any] = copy.deepcopy(dict(schema)) if left_out else dict(schema)
    for node in left_out:
        here: Any = copied
        for step in node.place:
            here = cast("Any", here[int(step)] if isinstance(here, list) else here[step])
        here.pop("pattern", None)  # a place may have been referred to as another's part, too
    return copied


def _compile(schema: dict[str, Any], pattern_size: int) -> Validator:
    if not str(schema.get("$schema", "")).rstrip("#").endswith(_DIALECTS):
        schema.pop("$schema", None)  # one that nobody here knows: read as the newest
    try:
        return validator_for(schema, offline=True, validate_formats=False, pattern_options=options(pattern_size))
    except (ValidationError, ReferencingError, ValueError) as error:
        raise Unchecked(f"it is not valid: {str(error).splitlines()[0][:200]}") from None


class Programs:
    """Compiled schemas by identity, so that a look-up costs nothing that grows with the schema.

    Those that were not used for longest are forgotten, so that no more than `most` bytes are held.
    """

    def __init__(self, most: int = _KEPT_BYTES) -> None:
        self._most = most
        self._kept: OrderedDict[int, tuple[Mapping[str, Any], Program | None]] = OrderedDict()
        self.weight = 0

    def get(self, schema: Mapping[str, Any], *, subject: str) -> Program | None:
        """The program for this very schema; None, and a line in the log the first time, where it is `Unchecked`."""
        if (kept := self._kept.get(id(schema))) is None:
            return self._compiled(schema, subject)
        self._kept.move_to_end(id(schema))
        return kept[1]

    def _compiled(self, schema: Mapping[str, Any], subject: str) -> Program | None:
        program = compile_schema(schema, subject=subject)
        # The schema is held, too: as long as it is, no other has its id.
        self._kept[id(schema)] = schema, program
        self.weight += _weight(program)
        while self.weight > self._most and len(self._kept) > 1:
            _, (_, forgotten) = self._kept.popitem(last=False)
            self.weight -= _weight(forgotten)
        return program


def _weight(kept: Program | None) -> int:
    return kept.weight if kept is not None else _NODE_BYTES


def compile_schema(schema: Mapping[str, Any], *, subject: str) -> Program | None:
    """The program, or None where the schema is `Unchecked`; what is not checked is logged."""
    try:
        program = Program(schema)
    except Unchecked as problem:
        log.warning("schema.unchecked", tool=subject, problem=str(problem))
        return None
    for node in program.left_out:
        problem = "not linear, or too large"
        log.warning("schema.pattern_unchecked", tool=subject, at="/".join(node.place), problem=problem)
    return program
