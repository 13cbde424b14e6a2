"""JSON Schema as a compiled program: whether a value surely fits, in about a microsecond and in linear time.

It only ever says yes. What it refuses, or cannot compile, the validator in `gateway.schema` looks at again, which is
slower and words the faults.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from jsonschema_rs import ValidationError, validator_for

Fits = Callable[[Any], bool]


def compile_schema(schema: Mapping[str, Any]) -> Fits | None:
    """A test for values of this schema; None where it is no valid one or refers to what is not in it.

    The test raises `ValueError` for what is no JSON value.
    """
    try:
        return validator_for(dict(schema), offline=True).is_valid
    except (ValidationError, ValueError):
        return None


@lru_cache(maxsize=1024)
def _pattern(pattern: str) -> Fits | None:
    return compile_schema({"pattern": pattern})


def matches(pattern: str, text: str) -> bool:
    """Whether a schema's `pattern` occurs in `text`; linear in its length, which Python's `re` is not."""
    test = _pattern(pattern)
    return test is None or test(text)
