"""Leave out of results what their server declares volatile: fields that differ each time, such as a clock."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, cast


def stable_text(text: str, paths: Iterable[str]) -> Any:
    """A text that is a JSON object or array, parsed and without the fields at these dotted paths; else the text."""
    try:
        parsed: Any = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return stable(parsed, paths) if isinstance(parsed, dict | list) else text


def stable(value: Any, paths: Iterable[str]) -> Any:
    """The value without the fields at these dotted paths, which pass through lists."""
    return _without(value, [path.split(".") for path in paths])


def _without(value: Any, paths: list[list[str]]) -> Any:
    if isinstance(value, Mapping):
        fields = cast("Mapping[str, Any]", value)
        left: dict[str, Any] = {}
        for name, inner in fields.items():
            below = [path[1:] for path in paths if path[0] == name]
            if [] not in below:
                left[name] = _without(inner, below)
        return left
    if isinstance(value, list):
        return [_without(inner, paths) for inner in cast("list[Any]", value)]
    return value
