"""Names of tools for chat APIs, which refuse some that MCP allows: with dots, slashes, or over 64 characters."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from itertools import chain, count
from typing import Any, cast

from rollout.types import Message

_TAKEN_BY_APIS = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class ApiNames:
    """The names of one request: they depend on the tools that it offers alone, and no two share one.

    A name that APIs take is itself; in another, `_` stands for each character that they refuse, and a digest follows
    where another tool has that name.
    """

    def __init__(self, tools: Sequence[Mapping[str, Any]], messages: Sequence[Message]) -> None:
        self._sent: dict[str, str] = {}
        offered = [str(tool["function"]["name"]) for tool in tools]
        self._add(name for name in offered if _TAKEN_BY_APIS.fullmatch(name))
        self._add(sorted(offered))
        self._real = {sent: name for name, sent in self._sent.items()}
        # What the policy made up goes back as well.
        self._add(call["function"]["name"] for message in messages for call in message.get("tool_calls", ()))
        self.tools = list(map(self._with_sent, tools))
        self.messages = [
            {**message, "tool_calls": list(map(self._with_sent, calls))}
            if (calls := message.get("tool_calls"))
            else message
            for message in messages
        ]

    def real(self, sent: str) -> str:
        """The tool's own name, or what the policy made up."""
        return self._real.get(sent, sent)

    def choice(self, value: Any) -> Any:
        """A `tool_choice` with the names as they are sent. Its other words are names that APIs take."""
        if isinstance(value, Mapping):
            return {key: self.choice(each) for key, each in cast("Mapping[str, Any]", value).items()}
        if isinstance(value, list):
            return list(map(self.choice, cast("list[Any]", value)))
        return self._sent.get(value, value) if isinstance(value, str) else value

    def _add(self, names: Iterable[str]) -> None:
        taken = set(self._sent.values())
        for name in names:
            if name not in self._sent:
                plain = re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:64] or "_"
                digests = (sha256(f"{name}{n}".encode(errors="replace")).hexdigest()[:8] for n in count())
                others = (f"{plain[:55]}_{digest}" for digest in digests)
                self._sent[name] = next(each for each in chain([plain], others) if each not in taken)
                taken.add(self._sent[name])

    def _with_sent(self, part: Mapping[str, Any]) -> dict[str, Any]:
        return {**part, "function": {**part["function"], "name": self._sent[str(part["function"]["name"])]}}
