"""How a tool's definition differs from what it was, for people to read."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from typing import Any

from gateway.catalogue.hidden_text import plain
from gateway.types import ToolDefinition


def difference(before: ToolDefinition, after: ToolDefinition, *, was: str, now: str) -> str:
    """A unified diff of what the lock pins; `was` and `now` say where each of the two comes from.

    What people would not see is written out, else a change of nothing but that would be shown as none.
    """
    old, new = (_lines({"name": tool.exposed_name, **tool.pinned}) for tool in (before, after))
    lines = difflib.unified_diff(old, new, was, now, n=1, lineterm="")
    return "\n".join([f"{before.server}/{before.name} has changed:", *lines])


def changed_tools(published: Mapping[str, ToolDefinition], now: Mapping[str, ToolDefinition]) -> list[str]:
    """One difference for each published tool that is defined otherwise now, or no longer there; by the server's names.

    Tools that came along since are no difference: nobody is shown them.
    """
    found: list[str] = []
    for name, before in published.items():
        after = now.get(name)
        if after is None:
            found.append(f"{before.server}/{name} is not listed any more")
        elif after.digest != before.digest or after.role is not before.role:
            found.append(difference(before, after, was="at the start", now="now"))
    return found


def _lines(value: Any) -> list[str]:
    # Not `splitlines`, which takes characters for line ends that JSON leaves in its strings.
    text = json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False)
    return [plain(line) for line in text.split("\n")]
