"""Compile a JSON Schema into a program whose time and memory are bounded before it runs.

Servers write the schemas, and the policy or a server the values, so both are hostile until measured. A schema that
cannot be bounded is `Unchecked`: nothing is validated against it, and its tool works like any other.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, cast

import structlog
from jsonschema_rs import ReferencingError, RegexOptions, ValidationError, Validator, validator_for

from gateway.schemas.cost import Costs, Extent, measure, too_large
from gateway.schemas.subschemas import Node, Unchecked, read_graph

log = structlog.get_logger(__name__)

MOST_EFFORT = 500_000
"""Maximum steps for one value: about 40 ms for the worst schema; real ones need far fewer."""
_STATES_A_STEP = 4
"""States of a regular expression, times characters, that take as long as one other step."""
MOST_WORDED = 30_000
"""Steps up to which every fault is described; a description takes some kilobytes of memory per step."""
_MOST_STACKED = 2000
"""Maximum nesting of schemas on the validator's stack, which overflows at fifty times that."""
_MOST_PATTERN_BYTES = 8 << 20
"""Maximum for all regular expressions of one schema."""
_LONGEST_PATTERN = 2000
"""In characters; the time to compile grows with them."""
_MOST_REJECTED = 3
"""Number of rejected patterns after which only the smallest size is tried."""
_MOST_UNEVALUATED = 50_000
"""Maximum steps in schemas with `unevaluated...`; everything that they apply is compiled a second time."""
_NODE_BYTES = 4096
_KEPT_BYTES = 64 << 20
_DIALECTS = ("draft-04/schema", "draft-06/schema", "draft-07/schema", "draft/2019-09/schema", "draft/2020-12/schema")


SIZES = (32 << 10, 256 << 10, 1 << 20)
"""Size limits for one compiled expression, in bytes; it counts as the first that is sufficient."""


class TooMuch(Exception):
    """Validating this value could take more than `MOST_EFFORT` steps."""


class Program:
    """One compiled schema.

    Raises:
        Unchecked: the schema is invalid, or its cost has no bound.
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
        self._unique_items = any(node.keywords.get("uniqueItems") is True for node in nodes)
        patterns = _Patterns(nodes)
        self.left_out = patterns.left_out
        """Subschemas that are used without their pattern."""
        self.weight = patterns.total + _NODE_BYTES * len(nodes)
        """Estimated size in bytes."""
        self._schema = _without_patterns(schema, self.left_out)
        self._validator = _compile(self._schema, patterns.largest)

    def names_beside(self, path: Sequence[str | int]) -> list[str]:
        """The names under `properties` of the subschema that has the keyword at `path`."""
        here: Any = self._schema
        for step in path[:-1]:
            here = here[step]
        return list(here.get("properties", ()))

    def fits(self, value: Any, extent: Extent | None = None) -> bool:
        """Whether `value` is valid, without saying why not: the quick way, for almost every call.

        Args:
            extent: Of `value`, where the caller has measured it.
        """
        try:
            return self.effort(value, extent)[0] <= MOST_EFFORT and self._validator.is_valid(value)
        except ValueError:
            return False

    def effort(self, value: Any, extent: Extent | None = None) -> tuple[int, int]:
        """Upper bounds on the steps of validating `value`, and of describing its faults. Raises as `errors` does."""
        nodes, characters, depth, comparisons, _ = extent or measure(value)
        cost = self._costs.at(depth)
        if cost.depth > _MOST_STACKED:
            return MOST_EFFORT + 1, MOST_EFFORT + 1
        steps = cost.steps * nodes
        if self._unique_items:
            steps += comparisons
        return steps + cost.text * characters // _STATES_A_STEP, steps

    def errors(self, value: Any) -> list[ValidationError] | None:
        """The faults of `value`; None if there are some and describing them would cost too much.

        Raises:
            TooMuch: nothing was validated.
            ValueError: it is not a JSON value, or is nested more than 100 deep.
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
    """The size in bytes that a pattern counts as, at most `room`; None if it is not linear or needs more."""
    if len(pattern) > _LONGEST_PATTERN:
        return None
    for size in SIZES:
        if size > room:
            return None
        try:
            validator_for({"pattern": pattern}, offline=True, pattern_options=options(size))
        except (ValidationError, ValueError):
            continue
        return size
    return None


class _Patterns:
    """The regular expressions of one schema: their size, and the ones that are left out.

    A rejected pattern is compiled with each of `SIZES`. After a few rejections only the smallest size is tried.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.total, self.largest = 0, SIZES[0]
        self.left_out: list[Node] = []
        """Subschemas whose own pattern is not linear or too large."""
        self._rejected = 0
        for node in nodes:
            stated = node.keywords.get("pattern")
            if isinstance(stated, str) and not self._add(stated):
                self.left_out.append(node)
            by_name: Any = node.keywords.get("patternProperties")
            for pattern in cast("Mapping[Any, Any]", by_name) if isinstance(by_name, Mapping) else ():
                if not self._add(str(pattern)):
                    # The other keywords of the schema depend on which members it selects.
                    raise Unchecked(f"a pattern for names is not linear, or too large: {str(pattern)[:80]!r}")

    def _add(self, pattern: str) -> bool:
        room = _MOST_PATTERN_BYTES - self.total
        size = compiled_size(pattern, room if self._rejected < _MOST_REJECTED else min(room, SIZES[0]))
        if size is None:
            self._rejected += 1
            return False
        self.total, self.largest = self.total + size, max(self.largest, size)
        return True


def _without_patterns(schema: Mapping[str, Any], left_out: Sequence[Node]) -> dict[str, Any]:
    copied: dict[str, Any] = copy.deepcopy(dict(schema)) if left_out else dict(schema)
    for node in left_out:
        here: Any = copied
        for step in node.place:
            here = cast("Any", here[int(step)] if isinstance(here, list) else here[step])
        here.pop("pattern", None)  # the same place may be reachable by several references
    return copied


def _compile(schema: dict[str, Any], pattern_size: int) -> Validator:
    if not str(schema.get("$schema", "")).rstrip("#").endswith(_DIALECTS):
        schema.pop("$schema", None)  # an unknown dialect is read as the newest one
    try:
        return validator_for(schema, offline=True, validate_formats=False, pattern_options=options(pattern_size))
    except (ValidationError, ReferencingError, ValueError) as error:
        raise Unchecked(f"it is not valid: {str(error).splitlines()[0][:200]}") from None


class Programs:
    """A cache of compiled schemas by identity, so that the cost of a lookup does not depend on the schema's size.

    The least recently used ones are evicted above `most` bytes.
    """

    def __init__(self, most: int = _KEPT_BYTES) -> None:
        self._most = most
        self._kept: OrderedDict[int, tuple[Mapping[str, Any], Program | None]] = OrderedDict()
        self.weight = 0

    def get(self, schema: Mapping[str, Any], *, subject: str) -> Program | None:
        """The program for this schema object; None, logged the first time with its `subject`, if it is `Unchecked`."""
        if (kept := self._kept.get(id(schema))) is None:
            return self._compiled(schema, subject)
        self._kept.move_to_end(id(schema))
        return kept[1]

    def _compiled(self, schema: Mapping[str, Any], subject: str) -> Program | None:
        program = compile_schema(schema, subject=subject)
        # The cache holds the schema, too, so that no other object gets its id.
        self._kept[id(schema)] = schema, program
        self.weight += _weight(program)
        while self.weight > self._most and len(self._kept) > 1:
            _, (_, forgotten) = self._kept.popitem(last=False)
            self.weight -= _weight(forgotten)
        return program


def _weight(kept: Program | None) -> int:
    return kept.weight if kept is not None else _NODE_BYTES


def compile_schema(schema: Mapping[str, Any], *, subject: str) -> Program | None:
    """The program, or None if the schema is `Unchecked`; logs whatever is not validated."""
    try:
        program = Program(schema)
    except Unchecked as problem:
        log.warning("schema.unchecked", tool=subject, problem=str(problem))
        return None
    for node in program.left_out:
        problem = "not linear, or too large"
        log.warning("schema.pattern_unchecked", tool=subject, at="/".join(node.place), problem=problem)
    return program


PROGRAMS = Programs()
"""Of the schemas of all tools."""
