"""Compile a JSON Schema into a program whose time and memory are bounded before it runs.

Servers write the schemas, and the policy or a server the values, so both are hostile until measured. A schema that
cannot be bounded is `Unchecked`: nothing is validated against it, and its tool works like any other.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

import structlog
from jsonschema_rs import ReferencingError, RegexOptions, ValidationError, Validator, validator_for

from mcp_rollout.gateway.schemas.extent import Extent, measure, too_large
from mcp_rollout.gateway.schemas.subschemas import UNEVALUATED, Document, Unchecked, Work, patterns_of

log = structlog.get_logger(__name__)

MOST_EFFORT = 500_000
"""Maximum steps for one value: about 40 ms for the worst schema; real ones need far fewer."""
_MOST_UNIQUE = 1000
"""Maximum size of a value with integers of more than 53 bits under `uniqueItems`."""
MOST_WORDED = 15_000
"""Steps up to which every fault is described; a description takes some kilobytes of memory per step."""
SIZES = (4 << 10, 16 << 10, 64 << 10, 256 << 10)
"""Size limits for one compiled expression, in bytes; it counts as the first that is sufficient."""
_MOST_PATTERN_BYTES = 2 << 20
"""Maximum for all regular expressions of one schema, the rejected ones too."""
_MOST_PATTERN_WORK = 6000
"""Maximum for all of them: compiling one takes as long as its length times its escapes, which the engine translates."""
_PATTERN_WORK = 30
"""Characters whose translation takes as long as the rest of compiling one."""
_CASELESS = re.compile(r"\(\?[a-zA-Z-]*i")
"""Takes milliseconds to compile for each class of characters."""
_MOST_UNEVALUATED = 50_000
"""Maximum steps in schemas with `unevaluated...`; everything that they apply is compiled a second time."""
_OBJECT_BYTES = 4096
_KEPT_BYTES = 64 << 20
_DIALECTS = ("draft-04/schema", "draft-06/schema", "draft-07/schema", "draft/2019-09/schema", "draft/2020-12/schema")


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
        self._document = Document(schema)
        self._sizes, self.left_out = _pattern_sizes(self._document.parts)
        """Regular expressions by size, and those that are not used."""
        self._work = {0: self._document.work(self._sizes)}
        unevaluated = [part for part in self._document.parts if UNEVALUATED & part.keys()]
        if self._document.work(self._sizes, schemas=unevaluated).steps > _MOST_UNEVALUATED:
            raise Unchecked("what its `unevaluated...` keywords refer to expands too far")
        self._unique_items = any(part.get("uniqueItems") is True for part in self._document.parts)
        self.weight = sum(self._sizes.values()) + _OBJECT_BYTES * len(self._document.parts)
        """Estimated size in bytes."""
        self._schema: dict[str, Any] = _without_patterns(schema, self.left_out) if self.left_out else dict(schema)
        self._validator = _compile(self._schema, max(self._sizes.values(), default=SIZES[0]))

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
        nodes, characters, depth, longest_bits = extent or measure(value)
        # Each such integer is compared with each other, digit by digit.
        if self._unique_items and longest_bits and nodes > _MOST_UNIQUE:
            return MOST_EFFORT + 1, MOST_EFFORT + 1
        if depth not in self._work:
            try:
                self._work[depth] = self._document.work(self._sizes, depth)
            except Unchecked:
                self._work[depth] = Work(MOST_EFFORT + 1, 0)
        steps = self._work[depth].steps * nodes
        return steps + self._work[depth].text * characters, steps

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


def compiled_size(pattern: str, most: int = SIZES[-1]) -> int | None:
    """The size in bytes that a pattern counts as, at most `most`; None if it is not linear, or too large."""
    if _work(pattern) > _MOST_PATTERN_WORK or _CASELESS.search(pattern) is not None:
        return None
    for size in SIZES:
        if size > most:
            return None
        try:
            validator_for({"pattern": pattern}, offline=True, pattern_options=options(size))
        except (ValidationError, ValueError):
            continue
        return size
    return None


def _work(pattern: str) -> int:
    return (_PATTERN_WORK + len(pattern)) * (1 + pattern.count("\\"))


def _pattern_sizes(parts: Sequence[Mapping[Any, Any]]) -> tuple[dict[str, int], Collection[str]]:
    """The sizes of all regular expressions of a schema, and those that are left out, which count as 0.

    Raises:
        Unchecked: one of `patternProperties` is left out: the schema's other keywords depend on what it selects.
    """
    sizes = dict[str, int]()
    left_out = set[str]()
    room, work = _MOST_PATTERN_BYTES, _MOST_PATTERN_WORK
    for part in parts:
        stated, names = patterns_of(part)
        for pattern in stated + names:
            if pattern not in sizes:
                work -= _work(pattern)
                size = compiled_size(pattern, room) if work >= 0 else None
                room -= SIZES[-1] if size is None else size
                sizes[pattern] = size or 0
                left_out |= {pattern} if size is None else set()
        if unusable := [pattern for pattern in names if not sizes[pattern]]:
            raise Unchecked(f"a pattern for names is not linear, or too large: {unusable[0][:80]!r}")
    return sizes, left_out


def _without_patterns(schema: Any, patterns: Collection[str]) -> Any:
    """A copy without the `pattern`s that are among `patterns`."""
    if isinstance(schema, list):
        return [_without_patterns(inner, patterns) for inner in cast("list[Any]", schema)]
    if not isinstance(schema, Mapping):
        return schema
    return {
        keyword: value if keyword in ("enum", "const") else _without_patterns(value, patterns)
        for keyword, value in cast("Mapping[Any, Any]", schema).items()
        if not (keyword == "pattern" and isinstance(value, str) and value in patterns)
    }


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
    return kept.weight if kept is not None else _OBJECT_BYTES


def compile_schema(schema: Mapping[str, Any], *, subject: str) -> Program | None:
    """The program, or None if the schema is `Unchecked`; logs whatever is not validated."""
    try:
        program = Program(schema)
    except Unchecked as problem:
        log.warning("schema.unchecked", tool=subject, problem=str(problem))
        return None
    for pattern in program.left_out:
        problem = "not linear, or too large"
        log.warning("schema.pattern_unchecked", tool=subject, pattern=pattern[:80], problem=problem)
    return program


PROGRAMS = Programs()
"""Of the schemas of all tools."""
