"""Compare the result of a replayed call with the recorded one, and describe the first difference and its remedy."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from hashlib import sha256
from typing import Any

from mcp_rollout.gateway.differences import Difference, differences
from mcp_rollout.gateway.types import VOLATILE_META, Content, ToolResult
from mcp_rollout.rollout.trace.events import stable, stable_text

_REMEDY = (
    f'declare fields of JSON that differ each time in the result\'s _meta["{VOLATILE_META}"],'
    " or use chains (strategy: chain)"
)


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
    return f"{', '.join(map(str, first))}; {_REMEDY}"


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
