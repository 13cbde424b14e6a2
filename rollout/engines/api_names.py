"""Names of tools for chat APIs, which refuse some that MCP allows: with dots, slashes, or over 64 characters."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from itertools import chain, count
from typing import Any

from mcp_rollout.rollout.engines.chat import Complete, Reply
from mcp_rollout.rollout.types import Message

_TAKEN_BY_APIS = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def api_names(offered: Sequence[str], made_up: Sequence[str] = ()) -> dict[str, str]:
    """Tools' names by those that are sent, which depend on the offered tools alone.

    A name that APIs take is itself; in another, `_` stands for each character that they refuse, and a digest follows
    where another tool has that name. Names that the policy made up get what is left.
    """
    names: dict[str, str] = {}
    for name in dict.fromkeys(
        [*sorted(offered, key=lambda name: (not _TAKEN_BY_APIS.fullmatch(name), name)), *made_up]
    ):
        plain = re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:64] or "_"
        digests = (sha256(f"{name}{n}".encode(errors="replace")).hexdigest()[:8] for n in count())
        others = (f"{plain[:55]}_{digest}" for digest in digests)
        names[next(each for each in chain([plain], others) if each not in names)] = name
    return names


def with_api_names(complete: Complete) -> Complete:
    """The same function for tools of any names."""

    async def renaming(messages: list[Message], tools: list[dict[str, Any]], **seed: int) -> Reply:
        called = [call["function"]["name"] for message in messages for call in message.get("tool_calls", ())]
        names = api_names([tool["function"]["name"] for tool in tools], called)
        sent = {name: each for each, name in names.items()}

        def renamed(part: Mapping[str, Any]) -> dict[str, Any]:
            return {**part, "function": {**part["function"], "name": sent[part["function"]["name"]]}}

        asked = [
            {**message, "tool_calls": list(map(renamed, calls))} if (calls := message.get("tool_calls")) else message
            for message in messages
        ]
        reply = await complete(asked, list(map(renamed, tools)), **seed)
        return replace(reply, calls=[replace(call, name=names.get(call.name, call.name)) for call in reply.calls])

    return renaming
