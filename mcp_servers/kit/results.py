"""Build tool results whose `_meta` carries reward, state digest and volatile fields."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from mcp_types import CallToolResult, TextContent

REWARD_META = "mcp-rollout/reward"
STATE_META = "mcp-rollout/state"
VOLATILE_META = "mcp-rollout/volatile"


def tool_result(
    text: str, *, reward: float | None = None, state: Any = None, volatile: Sequence[str] = (), is_error: bool = False
) -> CallToolResult:
    """A result that the policy reads as `text`, for a tool that is declared `-> CallToolResult`.

    Args:
        reward: Of this turn; read from servers that the environment marks as trusted.
        state: JSON from which the world's state after the call follows. Its digest tells which turns of several
            trajectories were taken in the same state; None gives none.
        volatile: Dotted paths of fields, where `text` is JSON, that differ each time although nothing else does.
        is_error: Whether the tool refused.

    Raises:
        TypeError: `volatile` is one text, of which each letter would be a path.
    """
    if isinstance(volatile, str):
        raise TypeError(f"volatile is a text; give a list of paths, as in volatile=[{volatile!r}]")
    meta: dict[str, Any] = {} if reward is None else {REWARD_META: reward}
    meta |= {} if state is None else {STATE_META: digest(state)}
    meta |= {VOLATILE_META: list(volatile)} if volatile else {}
    return CallToolResult(content=[TextContent(type="text", text=text)], is_error=is_error, _meta=meta or None)


def digest(state: Any) -> str:
    """A short digest of JSON, the same in every process."""
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()[:16]
