"""Compare the result of a replayed call with the recorded one, and describe the first difference and its remedy."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, cast

from gateway.types import VOLATILE_META, Content, ToolResult, canonical_json
from rollout.trace.events import stable, stable_text
from rollout.types import shared_beginning

_SHOWN = 60
"""Characters of a value that a description quotes."""
_BEFORE = 20
"""Those of them that precede the first difference, where a value is longer."""
_FIELDS = 5
"""Fields that a remedy names."""
_CHAINS = "use chains (strategy: chain)"
_ABSENT = object()


@dataclass(frozen=True, slots=True)
class Difference:
    """One value that differs between two results."""

    path: str
    """Where it is, with the indexes of lists: `structured.stat[0].mtime`."""
    before: Any
    now: Any
    field: str = ""
    """The dotted path that declares it volatile; empty where it cannot be declared."""
    is_text: bool = False
    """Whether it is text that is not JSON."""

    def __str__(self) -> str:
        if isinstance(self.before, str) and isinstance(self.now, str):
            # Cut before they are quoted, so that the position is one in the text itself.
            at, *texts = excerpts(self.before, self.now)
            before, now = map(canonical_json, texts)
        else:
            at, before, now = excerpts(_text(self.before), _text(self.now))
        where = f"{self.path} at character {at}" if at is not None else self.path
        return f"{where}: {before} became {now}"


def differences(recorded: ToolResult, result: ToolResult) -> list[Difference]:
    """The values that differ, in the order in which they are worth reading; none for equal results.

    Time, order of keys, and the fields that either result declares volatile may differ.
    """
    paths = {*recorded.volatile, *result.volatile}
    before, now = _comparable(recorded, paths), _comparable(result, paths)
    if canonical_json(before) == canonical_json(now):
        return []
    found: list[Difference] = []
    for part in ("is_error", "structured"):
        _compare(before[part], now[part], part, (), found)
    _compare_content(before["content"], now["content"], found)
    for part in ("reward", "state"):
        _compare(before[part], now[part], part, (), found)
    return found


def described(found: Sequence[Difference]) -> str:
    """The first difference and what to do, in one line; `found` has at least one."""
    # That a call failed says little without what it answered.
    first = found[:2] if found[0].path == "is_error" else found[:1]
    return f"{', '.join(map(str, first))}; {_remedy(found)}"


def excerpts(before: str, now: str) -> tuple[int | None, str, str]:
    """Two texts as they are, or the same part of both from shortly before the first character that differs.

    Returns:
        The position of this character from 0, None if the texts are whole, and the two texts.
    """
    if max(len(before), len(now)) <= _SHOWN:
        return None, before, now
    at = shared_beginning(before, now)
    start = max(0, at - _BEFORE)
    return at, _part(before, start), _part(now, start)


def _part(text: str, start: int) -> str:
    end = start + _SHOWN
    return f"{'...' if start else ''}{text[start:end]}{'...' if end < len(text) else ''}"


def _text(value: Any) -> str:
    return "absent" if value is _ABSENT else canonical_json(value)


def _remedy(found: Sequence[Difference]) -> str:
    declared = f'_meta["{VOLATILE_META}"]'
    if all(each.field for each in found):
        fields = list(dict.fromkeys(each.field for each in found))
        named = ", ".join(json.dumps(each, ensure_ascii=False) for each in fields[:_FIELDS])
        named += f" and {len(fields) - _FIELDS} more" if len(fields) > _FIELDS else ""
        return f"declare {named} in the result's {declared}, or {_CHAINS}"
    if all(each.field or each.is_text for each in found):
        return f"answer with JSON and declare the fields that differ each time in {declared}, or {_CHAINS}"
    return _CHAINS


def _comparable(result: ToolResult, paths: Collection[str]) -> dict[str, Any]:
    """A result without what may differ."""
    return {
        "content": [_block(block, paths) for block in result.content],
        "structured": stable(result.structured, paths),
        "is_error": result.is_error,
        "reward": result.reward,
        "state": result.state,
    }


def _block(block: Content, paths: Collection[str]) -> dict[str, Any]:
    # Servers repeat structured content as JSON text: compared as JSON, so that volatile fields are left out there, too.
    text = stable_text(block.text, paths)
    data = sha256(block.data).hexdigest() if block.data else ""
    return {"kind": block.kind, "text": text, "data": data, "mime_type": block.mime_type, "uri": block.uri}


def _compare_content(before: list[dict[str, Any]], now: list[dict[str, Any]], found: list[Difference]) -> None:
    if len(before) != len(now):
        found.append(Difference("number of content blocks", len(before), len(now)))
    for number, (one, other) in enumerate(zip(before, now, strict=False)):
        block = f"content[{number}]"
        for part in one:
            path = part if part == "text" and len(before) == len(now) == 1 else f"{block}.{part}"
            if part == "text" and isinstance(one[part], str) and isinstance(other[part], str):
                if one[part] != other[part]:
                    found.append(Difference(path, one[part], other[part], is_text=True))
            else:
                _compare(one[part], other[part], path, (), found)


def _compare(before: Any, now: Any, path: str, names: tuple[str, ...], found: list[Difference]) -> None:
    """Add the values that differ below this path; `names` are the fields on the way to it."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        one, other = cast("Mapping[str, Any]", before), cast("Mapping[str, Any]", now)
        for name in dict.fromkeys((*one, *other)):
            _compare(one.get(name, _ABSENT), other.get(name, _ABSENT), f"{path}.{name}", (*names, name), found)
    elif isinstance(before, list) and isinstance(now, list):
        first, second = cast("list[Any]", before), cast("list[Any]", now)
        for number in range(max(len(first), len(second))):
            one, other = (each[number] if number < len(each) else _ABSENT for each in (first, second))
            _compare(one, other, f"{path}[{number}]", names, found)
    elif before is _ABSENT or now is _ABSENT or canonical_json(before) != canonical_json(now):
        # A name with a dot cannot be part of a dotted path.
        field = "" if any("." in name for name in names) else ".".join(names)
        found.append(Difference(path, before, now, field))
