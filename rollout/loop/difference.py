"""Compare the result of a replayed call with the recorded one, and describe the first difference and its remedy."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from hashlib import sha256
from typing import Any

from mcp_rollout.gateway.differences import Difference, differences
from mcp_rollout.gateway.types import VOLATILE_META, Content, ToolResult
from mcp_rollout.rollout.trace.events import stable, stable_text

_FIELDS = 5
"""Fields that a remedy names."""
_CHAINS = "use chains (strategy: chain)"


def compared(recorded: ToolResult, result: ToolResult) -> list[Difference]:
    """The values that differ, in the order in which they are worth reading; none for equal results.

    Time, order of keys, and the fields that either result declares volatile may differ.
    """
    paths = {*recorded.volatile, *result.volatile}
    one_text = len(recorded.content) == len(result.content) == 1
    before, now = (_comparable(each, paths, one_text) for each in (recorded, result))
    return list(differences(before, now))


def described(found: Sequence[Difference]) -> str:
    """The first difference and what to do, in one line; `found` has at least one."""
    # That a call failed says little without what it answered.
    first = found[:2] if found[0].path == "is_error" else found[:1]
    return f"{', '.join(map(str, first))}; {_remedy(found)}"


def declared(found: Difference) -> str:
    """The dotted path that declares a value volatile; empty where it cannot be declared."""
    match found.names:
        case ("structured" | "text", *names) | ("content", "text", *names) if not any("." in name for name in names):
            return ".".join(names)
        case _:
            return ""


def _remedy(found: Sequence[Difference]) -> str:
    where = f'_meta["{VOLATILE_META}"]'
    fields = list(dict.fromkeys(map(declared, found)))
    if all(fields):
        named = ", ".join(json.dumps(each, ensure_ascii=False) for each in fields[:_FIELDS])
        named += f" and {len(fields) - _FIELDS} more" if len(fields) > _FIELDS else ""
        return f"declare {named} in the result's {where}, or {_CHAINS}"
    if all(declared(each) or _is_text(each) for each in found):
        return f"answer with JSON and declare the fields that differ each time in {where}, or {_CHAINS}"
    return _CHAINS


def _is_text(found: Difference) -> bool:
    """Whether it is text that is not JSON."""
    is_whole = found.names in (("text",), ("content", "text"))
    return is_whole and isinstance(found.before, str) and isinstance(found.now, str)


def _comparable(result: ToolResult, paths: Collection[str], one_text: bool) -> dict[str, Any]:
    """A result without what may differ; a single block's fields stand beside the others."""
    blocks = [_block(block, paths) for block in result.content]
    return {
        "is_error": result.is_error,
        "structured": stable(result.structured, paths),
        **(blocks[0] if one_text else {"content": blocks}),
        "reward": result.reward,
        "state": result.state,
    }


def _block(block: Content, paths: Collection[str]) -> dict[str, Any]:
    # Servers repeat structured content as JSON text: compared as JSON, so that volatile fields are left out there, too.
    found = {"kind": block.kind, "text": stable_text(block.text, paths), "mime_type": block.mime_type, "uri": block.uri}
    found["data"] = sha256(block.data).hexdigest() if block.data else None
    return {name: value for name, value in found.items() if value is not None}
