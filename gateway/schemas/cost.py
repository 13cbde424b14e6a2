"""Upper bound on the work of validating a value against a schema, computed before any validation runs.

A schema that is applied twice costs twice, so references that fan out make a short schema exponentially expensive. The
cost of each schema for values nested `n` deep follows from the costs for `n - 1`, in time linear in the schema. A path
into a value meets one member at a time, so the costs of members with different names do not add up.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from gateway.schemas.subschemas import Node, Unchecked

DEEPEST = 100
"""Maximum nesting of a value, or of a schema as a document."""
MOST_NESTED = 64
"""Maximum nesting of a call's arguments, so that messages which contain them still fit `DEEPEST`."""
MOST_VALUES = 100_000
"""Maximum JSON values and names in one schema."""
MOST_DIGITS = 4000
"""Maximum digits of an integer in a call's arguments: Python servers cannot read a message with one of over 4,300."""
MOST_BITS = (10**MOST_DIGITS - 1).bit_length()
_MOST_LONG = 50
"""Integers of `MOST_DIGITS` digits in a call's arguments, or as many digits: to write one takes 0.1 ms."""
_ENORMOUS = 1 << 40
_CHARACTERS = 64
"""Characters of a string whose comparison takes as long as one more value."""


_TOKEN = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|\{(\d{1,6})(,?)(\d{0,6})\}|.", re.DOTALL)
_PLAIN = frozenset({bool, type(None)})
"""Types of values without parts and length."""
_BIG = 1 << 63
"""Integers from here on are read digit by digit for each comparison, and under `uniqueItems` each meets each."""
_BIG_STEPS, _BIG_BITS = 4, 222
"""Reading two such integers takes as long as that many other steps, and one for each square of so many bits."""
_DIVISION_STEPS, _MAGNITUDE_STEPS = 150, 4
"""Dividing by a `multipleOf` takes as long as that many other steps, and so many for each power of ten in it."""
_type_of: Callable[[Any], Any] = type
_OBJECT: Any = Mapping
_ARRAY: Any = (list, tuple)


class TooDeep(ValueError):
    """A value is nested more than `DEEPEST` deep."""


class Extent(NamedTuple):
    """How large a JSON value is."""

    nodes: int
    """Number of values and names; a long string or integer counts for several."""
    characters: int
    depth: int
    """0 for a value without parts."""
    comparisons: int
    """Steps of comparing all integers of more than 64 bits with each other."""
    longest_bits: int
    """Bits of the longest one."""


def measure(value: Any) -> Extent:
    """The extent of a JSON value, in time linear in it.

    Raises:
        TooDeep: it is nested more than `DEEPEST` deep.
        ValueError: an object has a name that is not a string, a string has a lone surrogate, or a number is not finite.
    """
    # Runs on every call, so it avoids type checks and function calls where possible.
    nodes = characters = depth = big = work = longest = together = 0
    level: list[Any] = [value]
    while True:
        nodes += len(level)
        below: list[Any] = []
        for each in level:
            kind = _type_of(each)
            if kind is str:
                characters += len(each) if each.isascii() else _length(each)
            elif kind is int:
                if not -_BIG < each < _BIG:
                    bits = each.bit_length()
                    big, longest, together = big + 1, max(longest, bits), together + bits
                    work += _BIG_STEPS + (bits // _BIG_BITS) ** 2
            elif kind in _PLAIN:
                continue
            elif kind is float:
                if each - each != 0:  # infinite, or not a number
                    raise ValueError("a number is not finite, which JSON cannot write")
            elif kind is dict or isinstance(each, _OBJECT):
                for name in each:
                    if type(name) is not str and not isinstance(name, str):
                        raise ValueError("an object has a name that is not a string")
                    characters += len(name) if name.isascii() else _length(name)
                nodes += len(each)
                below += each.values()
            elif isinstance(each, _ARRAY):
                below += each
            elif isinstance(each, str):
                characters += _length(each)
        if not below:
            return Extent(
                nodes + characters // _CHARACTERS + work,
                characters,
                depth,
                big * work,
                max(longest, together // _MOST_LONG),
            )
        if depth == DEEPEST:
            raise TooDeep(f"nested more than {DEEPEST} deep")
        level, depth = below, depth + 1


def _length(text: str) -> int:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("a string has a lone surrogate, which is not text") from None
    return len(text)


def too_large(schema: Mapping[str, Any]) -> str:
    """Why a schema or a tool definition is too large to be used; empty if it is not."""
    try:
        extent = measure(schema)
    except TooDeep as error:
        return f"it is {error}"
    except ValueError as error:
        return str(error)
    return f"it has more than {MOST_VALUES} values in it" if extent.nodes > MOST_VALUES else ""


class Cost(NamedTuple):
    """An upper bound for one value of a given depth, along any path into it."""

    steps: int
    """Keywords and schema values to evaluate."""
    text: int
    """States of regular expressions to visit for each character."""
    depth: int
    """Nesting of schemas, which the validator's stack has to hold."""


class Costs:
    """The cost of a graph's root by the depth of the value, computed on demand.

    Raises:
        Unchecked: the schema applies itself to the same value.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        self._order = _applied_first(nodes)
        self._own = [_own(node) for node in nodes]
        self.flat = self._next([Cost(0, 0, 0)] * len(nodes))
        """For each schema, the cost for a value without parts."""
        self._last = self.flat
        self._by_depth = [self.flat[0]]
        self._settled = False

    def at(self, depth: int) -> Cost:
        """The root's cost for a value of this depth."""
        if depth < len(self._by_depth):
            return self._by_depth[depth]
        while len(self._by_depth) <= depth and not self._settled:
            now = self._next(self._last)
            # For all deeper values the costs are the same, or too large for the number to matter.
            self._settled = now == self._last or now[0].steps >= _ENORMOUS
            self._last = now
            self._by_depth.append(now[0])
        return self._by_depth[min(depth, len(self._by_depth) - 1)]

    def _next(self, below: Sequence[Cost]) -> list[Cost]:
        """The costs for values one level deeper than those of `below`.

        A value is either an array or an object, so the costs of items and of members are summed separately over all
        schemas that apply to one value. Of members with different names a path meets only one, so the maximum counts.
        """
        now = [Cost(0, 0, 0)] * len(self._nodes)
        apart: list[_Apart] = [(0, 0, 0, 0, 0, 0)] * len(self._nodes)
        for index in self._order:
            node = self._nodes[index]
            here, here_text = self._own[index]
            items = items_text = members = members_text = deepest = 0
            for each in node.here:
                parts = apart[each]
                here, here_text = here + parts[0], here_text + parts[1]
                items, items_text = items + parts[2], items_text + parts[3]
                members, members_text = members + parts[4], members_text + parts[5]
                deepest = max(deepest, now[each].depth)
            for each in node.items:
                steps, text, depth = below[each]
                items, items_text, deepest = items + steps, items_text + text, max(deepest, depth)
            for each in node.members:
                steps, text, depth = below[each]
                members, members_text, deepest = members + steps, members_text + text, max(deepest, depth)
            largest = largest_text = 0
            for each in node.named:
                steps, text, depth = below[each]
                largest, largest_text = max(largest, steps), max(largest_text, text)
                deepest = max(deepest, depth)
            parts = here, here_text, items, items_text, members + largest, members_text + largest_text
            apart[index] = parts = cast("_Apart", tuple(min(part, _ENORMOUS) for part in parts))
            now[index] = Cost(parts[0] + max(parts[2], parts[4]), parts[1] + max(parts[3], parts[5]), deepest + 1)
        return now


_Apart = tuple[int, int, int, int, int, int]
"""Steps and text each for the value itself, for its items, and for its members."""


def _own(node: Node) -> tuple[int, int]:
    """Steps and text of a schema itself, without its subschemas."""
    steps, text = 1, 0
    for keyword, value in node.keywords.items():
        steps += 1
        if keyword in ("enum", "const", "required", "dependentRequired"):
            steps += measure(value).nodes
        elif isinstance(value, Mapping | list):
            steps += len(cast("list[Any]", value))
        if keyword == "multipleOf" and isinstance(value, int | float):
            steps += _DIVISION_STEPS + _MAGNITUDE_STEPS * _magnitude(value)
        elif keyword == "pattern" and isinstance(value, str):
            text += states(value)
        elif keyword == "patternProperties" and isinstance(value, Mapping):
            text += sum(states(str(pattern)) for pattern in cast("Mapping[Any, Any]", value))
    return steps, text


def _magnitude(number: float) -> int:
    """Powers of ten in a number, of either sign: the engine divides exactly, with as many digits."""
    if isinstance(number, int):
        return number.bit_length() // 3
    return abs(math.frexp(number)[1]) // 3 if math.isfinite(number) else 0


def _applied_first(nodes: Sequence[Node]) -> list[int]:
    """All indices, each after those that its schema applies to the same value. Raises `Unchecked` on a cycle."""
    waits_for = [len(node.here) for node in nodes]
    applied_by: list[list[int]] = [[] for _ in nodes]
    for index, node in enumerate(nodes):
        for each in node.here:
            applied_by[each].append(index)
    order = [index for index, waiting in enumerate(waits_for) if not waiting]
    for index in order:  # grows while it is read
        for each in applied_by[index]:
            waits_for[each] -= 1
            if not waits_for[each]:
                order.append(each)
    if len(order) < len(nodes):
        raise Unchecked("it applies itself to the same value, endlessly")
    return order


def states(pattern: str) -> int:
    """Number of automaton states of a pattern, that is of its places with repeats written out."""
    total, last = [1], [0]  # by depth of the group; the last part is the operand of a repeat
    for token in _TOKEN.finditer(pattern):
        match token.group():
            case "(":
                total.append(1)
                last.append(0)
            case ")" if len(total) > 1:
                last.pop()
                last[-1] = total.pop()
                total[-1] += last[-1]
            case "|" | "^" | "$" | "*" | "+" | "?" | ")":
                pass
            case _ if token.group(1) is not None:
                times = max(int(token.group(1)) + (token.group(2) == ","), int(token.group(3) or 0))
                total[-1] += last[-1] * max(0, times - 1)
                last[-1] *= max(1, times)
            case _:
                last[-1] = 1
                total[-1] += 1
    return sum(total)
