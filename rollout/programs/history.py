"""What a request continues: the conversation that a program has told so far, compared by the ids of its calls.

Programs return the ids of calls unchanged, and little else: arguments come back with `3.0` as `3`, malformed calls
under another name, reasoning not at all. An answer is therefore known by the ids that were made for its calls.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, cast

from pydantic_core import from_json

from gateway.types import canonical_json
from rollout.loop.outside import comparable
from rollout.types import Message

Key = bytes
"""Digest of what of a message must be equal for the ids before it to be kept."""


class Kind(StrEnum):
    """How a request relates to the conversation."""

    OPENING = "opening"
    EXTENSION = "extension"
    """The conversation goes on after the last answer."""
    BRANCH = "branch"
    """It goes on after an earlier answer: what came after that was dropped."""
    REWRITTEN = "rewritten"
    """The program rewrote its beginning: a summary, other tools, another system message."""
    BESIDE = "beside"
    """Another conversation, such as one for a title."""


@dataclass(frozen=True, slots=True)
class Place:
    kind: Kind
    turn: int = -1
    """The turn whose answer is the last that is kept."""
    known: int = 0
    """Number of the request's messages up to that answer."""


@dataclass(frozen=True, slots=True)
class Told:
    """A conversation as keys."""

    messages: tuple[Key, ...]
    tools: Key
    opening: Key | None
    """Of the first message of a user."""

    def begins(self, other: Told) -> bool:
        """Whether the other one continues it, with the same tools."""
        return self.tools == other.tools and other.messages[: len(self.messages)] == self.messages


class CallIds:
    """The ids of one trajectory's calls."""

    def __init__(self, trajectory: str) -> None:
        self._prefix = f"call_{trajectory[:8]}_"

    def of(self, turn: int, position: int) -> str:
        return f"{self._prefix}{turn}_{position}"

    def position(self, id: str, turn: int) -> int | None:
        """The position of a call of this turn; None for any other id."""
        of, _, position = id.removeprefix(self._prefix).rpartition("_")
        return int(position) if self.are_ours([id]) and of == str(turn) and position.isdecimal() else None

    def are_ours(self, ids: Sequence[str]) -> bool:
        return bool(ids) and all(id.startswith(self._prefix) for id in ids)

    def told(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Told:
        keys = tuple(map(self.key, messages))
        opening = next((key for key, each in zip(keys, messages, strict=True) if each["role"] == "user"), None)
        return Told(keys, _digest(tools), opening)

    def key(self, message: Message) -> Key:
        calls = [(call["id"], call["function"]) for call in message.get("tool_calls") or ()]
        ids: Any = [id for id, _ in calls]
        if not self.are_ours(ids):
            ids = [(id, function["name"], comparable(arguments_of(function["arguments"]))) for id, function in calls]
        return _digest([message["role"], message["content"], ids, message.get("tool_call_id")])


class History:
    """The turns of a program, each with the conversation that ended in it."""

    def __init__(self) -> None:
        self._told: list[Told | None] = []
        self._openings: set[Key | None] = set()

    def place(self, told: Told, messages: Sequence[Message], ids: CallIds) -> Place:
        """What a request continues, which is not a repetition."""
        if not self._told:
            return Place(Kind.OPENING)
        for turn in range(len(self._told) - 1, -1, -1):
            before = self._told[turn]
            if before is None or not before.begins(told):
                continue
            known = len(before.messages)
            # An answer of another model's in between can only be rendered.
            if messages[known:] and all(message["role"] != "assistant" for message in messages[known:]):
                return Place(Kind.EXTENSION if turn == len(self._told) - 1 else Kind.BRANCH, turn, known)
        is_ours = any(
            ids.are_ours([call["id"] for call in message.get("tool_calls") or ()]) for message in messages
        ) or (told.opening is not None and told.opening in self._openings)
        return Place(Kind.REWRITTEN if is_ours else Kind.BESIDE)

    def answered(self, told: Told | None) -> None:
        """Note a turn, with the conversation that ended in it; None for one that nothing can continue."""
        self._told.append(told)
        if told is not None:
            self._openings.add(told.opening)


def arguments_of(text: str, otherwise: str = "arguments") -> dict[str, Any]:
    """A call's arguments; where the text is not a JSON object, the text as one argument of the name `otherwise`."""
    try:
        found: Any = from_json(text)  # strict: no half of a surrogate pair, nothing too deep
    except ValueError:
        found = None
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {otherwise: text}


def _digest(value: Any) -> Key:
    return hashlib.sha256(canonical_json(value).encode(errors="replace")).digest()[:16]
