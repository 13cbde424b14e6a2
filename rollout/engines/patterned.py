"""Text for a schema's `pattern`, made by rstr within bounds: the pattern is a stranger's."""

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
"""Of what may be repeated without end."""
MAX_CHARACTERS = 2000
"""A pattern that may need a longer text is left alone."""
MAX_PATTERN = 500
DRAWS = 20

_SIZE = 1 << 20
_TOKEN = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|\{(\d{1,6}),\}|[*+]", re.DOTALL)
_Item = TypeVar("_Item")


class _InOrder(Random):
    """Gives the same in every process: rstr chooses from sets of characters, whose order is another in each."""

    def choice(self, seq: Sequence[_Item]) -> _Item:  # pyright: ignore[reportIncompatibleMethodOverride]
        characters = all(isinstance(item, str) for item in seq)
        return super().choice(sorted(seq, key=str) if characters else seq)


def fits(text: str, pattern: str, *, low: int = 0, high: int | None = None) -> bool:
    """Whether the text has the length, in characters, and contains the pattern, by the engine that calls are checked
    with. What that engine cannot read nothing fits."""
    if not low <= len(text) <= (len(text) if high is None else high):
        return False
    engine = _engine(pattern)
    return engine is not None and engine.is_valid(text)


def matching(pattern: str, rng: Random, *, low: int = 0, high: int | None = None) -> str | None:
    """A text that `fits`; None where the pattern is too large, is not understood, or its texts have other lengths.

    A counted repeat goes up to 100.
    """
    bounded = _TOKEN.sub(_bounded, pattern)
    if len(pattern) > MAX_PATTERN or states(bounded) > MAX_CHARACTERS or _engine(pattern) is None:
        return None
    draw = Rstr(_InOrder(rng.getrandbits(64)))
    try:
        made = (draw.xeger(bounded) for _ in range(DRAWS))
        return next((text for text in made if fits(text, pattern, low=low, high=high)), None)
    except (re.error, ArithmeticError, LookupError, ValueError, RecursionError):
        return None  # rstr reads Python's dialect, and not all of that


@lru_cache(maxsize=256)
def _engine(pattern: str) -> Validator | None:
    size = compiled_size(pattern, _SIZE)
    return None if size is None else validator_for({"pattern": pattern}, pattern_options=options(size))


def _bounded(token: re.Match[str]) -> str:
    match token.group():
        case "*":
            return f"{{0,{MAX_REPEATS}}}"
        case "+":
            return f"{{1,{MAX_REPEATS}}}"
        case other if token.group(1) is not None:
            return f"{other[:-1]}{int(token.group(1)) + MAX_REPEATS}}}"
        case other:
            return other
