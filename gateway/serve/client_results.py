"""A server's result as its client's protocol era has it, and the world's handle in it."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any, cast

from mcp_types import SERVER_INFO_META_KEY

Json = dict[str, Any]

WORLD_META = "mcp-rollout/world"
"""In the `_meta` of results, and of a client's later requests: its world, where the era has no sessions."""
_INFO: Json = {"name": "mcp-rollout", "version": version("mcp-rollout")}
_MODERN_ONLY = frozenset(("resultType", "ttlMs", "cacheScope"))
_MARK = "mcp-rollout."


def enveloped(result: Mapping[str, Any], **meta: str) -> Json:
    """A result of 2026-07-28: with its type, and the identity of this server in place of the server's behind it."""
    said = {**cast("Json", result.get("_meta") or {}), **meta, SERVER_INFO_META_KEY: _INFO}
    return {"resultType": "complete", **result, "_meta": said}


def in_era(result: Json, handle: str, *, modern: bool) -> Json:
    """A server's result for a client of either era."""
    if modern:
        return enveloped(result, **{WORLD_META: handle})
    said = cast("Json", result.get("_meta") or {})
    meta = {name: value for name, value in said.items() if name != SERVER_INFO_META_KEY}
    kept = {name: value for name, value in result.items() if name not in _MODERN_ONLY and name != "_meta"}
    return {**kept, "_meta": meta} if meta else kept


def joined_state(result: Json, handle: str) -> Json:
    """A question of the server with its world in `requestState`: the answer has to reach the same one.

    The handle cannot be guessed, and the server's own state follows it as it is, for the server to verify.
    """
    if result.get("resultType") != "input_required":
        return result
    state = result.get("requestState")
    return {**result, "requestState": f"{_MARK}{handle}" + (f".{state}" if state is not None else "")}


def split_state(params: Json) -> str:
    """Take the world out of a request's `requestState`, and leave the server's own; returns the handle."""
    state = params.get("requestState")
    if not isinstance(state, str):
        return ""
    handle, dot, own = state.removeprefix(_MARK).partition(".")
    if dot:
        params["requestState"] = own
    else:
        del params["requestState"]
    return handle if state.startswith(_MARK) else "?"
