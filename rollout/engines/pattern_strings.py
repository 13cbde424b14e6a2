"""Random strings that match a schema's `pattern`, drawn by rstr; servers' patterns are bounded in size and work."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from random import Random
from typing import TypeVar

from jsonschema_rs import Validator, validator_for
from rstr import Rstr

from gateway.schemas.compiled import compiled_size, options
from gateway.schemas.cost import states

MAX_REPEATS = 8
"""Most repeats of an unbounded quantifier."""
MAX_CHARACTERS = 2000
"""A pattern whose match may be longer is not tried."""
MAX_PATTERN = 500
DRAWS = 20

_SIZE = 1 << 20
_TOKEN = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|\{(\d{1,6}),\}|[*+]", re.DOTALL)
_Item = TypeVar("_Item")


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
    if len(pattern) > MAX_PATTERN or states(bounded) > MAX_CHARACTERS or _engine(pattern) is None:
        return None
    draw = Rstr(_InOrder(rng.getrandbits(64)))
    try:
        made = (draw.xeger(bounded) for _ in range(DRAWS))
        return next((text for text in made if matches(text, pattern, low=low, high=high)), None)
    except (re.error, ArithmeticError, LookupError, ValueError, RecursionError):
        return None  # rstr reads a part of Python's dialect


@lru_cache(maxsize=256)
def _engine(pattern: str) -> Validator | None:
    size = compiled_size(pattern, _SIZE)
    return None if size is None else validator_for({"pattern": pattern}, pattern_options=options(size))


def _bounded(token: re.Match[str]) -> str:
    """The token, an unbounded quantifier limited to `MAX_REPEATS` more than its minimum."""
    if token.group(1) is not None:
        return f"{token.group()[:-1]}{int(token.group(1)) + MAX_REPEATS}}}"
    return {"*": f"{{0,{MAX_REPEATS}}}", "+": f"{{1,{MAX_REPEATS}}}"}.get(token.group(), token.group())
