"""What a request continues: the conversation that a program has told so far, compared by the ids of its calls.

Programs return the ids of calls unchanged, and little else: arguments come back with `3.0` as `3`, malformed calls
under another name, reasoning not at all. An answer is therefore known by the ids that were made for its calls.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, cast

from pydantic_core import from_json

from mcp_rollout.gateway.types import canonical_json
from mcp_rollout.rollout.programs.outside import comparable
from mcp_rollout.rollout.types import Message

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
    """The program rewrote it: a summary, other tools, another system message."""
    BESIDE = "beside"
    """Another conversation, such as one for a title or of a sub-agent."""


@dataclass(frozen=True, slots=True)
class Place:
    kind: Kind
    turn: int = -1
    """The turn whose answer is the last that is kept."""
    known: int = 0
    """Number of the request's messages up to that answer."""
    is_beside: bool = False
    """Whether it goes on with a conversation of turns beside the program's."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """A conversation as keys."""

    messages: tuple[Key, ...]
    tools: Key
    """Of the tools that the policy is shown."""
    offered: Key
    """Of all tools."""
    turns: frozenset[int]
    """The turns whose calls it has."""

    def is_start_of(self, other: Fingerprint) -> bool:
        return other.messages[: len(self.messages)] == self.messages

    def begins(self, other: Fingerprint) -> bool:
        """Whether the other one continues it, with the same tools."""
        return self.tools == other.tools and self.is_start_of(other)


class CallIds:
    """The ids of one trajectory's calls."""

    def __init__(self, trajectory: str) -> None:
        self._prefix = f"call_{trajectory[:8]}_"
        self._given: dict[str, tuple[int, int]] = {}

    def of(self, turn: int, position: int) -> str:
        """A new id. Turns below 0 are in no segment."""
        id = f"{self._prefix}{turn}_{position}"
        self._given[id] = turn, position
        return id

    def place(self, id: str | None) -> tuple[int, int] | None:
        """The turn and the position of a call; None for an id that is not of here."""
        return self._given.get(id or "")

    def is_forged(self, id: str) -> bool:
        return id.startswith(self._prefix) and id not in self._given

    def fingerprint(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        offered: Sequence[Mapping[str, Any]],
    ) -> Fingerprint:
        ids = [call["id"] for message in messages for call in message.get("tool_calls") or ()]
        turns = frozenset(self._given[id][0] for id in ids if id in self._given)
        return Fingerprint(tuple(map(self.key, messages)), _digest(tools), _digest(offered), turns)

    def key(self, message: Message) -> Key:
        calls = [(call["id"], call["function"]) for call in message.get("tool_calls") or ()]
        ids: Any = [id for id, _ in calls]
        if any(id not in self._given for id in ids):
            ids = [(id, function["name"], comparable(arguments_of(function["arguments"]))) for id, function in calls]
        return _digest([message["role"], message["content"], ids, message.get("tool_call_id")])


class History:
    """The turns of a program, each with the conversation that ended in it."""

    def __init__(self) -> None:
        self._fingerprints: list[Fingerprint] = []
        self._opening: Fingerprint | None = None
        self.beside: set[int] = set()
        """The turns beside the conversation."""

    def place(self, fingerprint: Fingerprint, messages: Sequence[Message]) -> Place:
        """What a request continues, which is not a repetition."""
        if self._opening is None:
            return Place(Kind.OPENING)
        turns = set(fingerprint.turns)
        for turn in range(len(self._fingerprints) - 1, -1, -1):
            before = self._fingerprints[turn]
            if not before.is_start_of(fingerprint):
                continue
            known, kind = len(before.messages), Kind.EXTENSION if turn == len(self._fingerprints) - 1 else Kind.BRANCH
            # An answer of another model's in between can only be rendered.
            is_new = messages[known:] and all(message["role"] != "assistant" for message in messages[known:])
            if before.tools == fingerprint.tools and is_new:
                return Place(kind, turn, known, turn in self.beside)
            turns.add(turn)
        # After a summary there is no call of ours: the program begins as it began, with the tools of then.
        begins_again = self._opening.offered == fingerprint.offered and self._opening.is_start_of(fingerprint)
        own = {turn for turn in turns if turn >= 0}
        if begins_again or own:
            return Place(Kind.REWRITTEN, is_beside=not begins_again and own <= self.beside)
        return Place(Kind.BESIDE)

    def answered(self, fingerprint: Fingerprint, answer: Key, *, begins: bool, is_beside: bool) -> None:
        """Note a turn, which answers this conversation."""
        if begins:
            self._opening = fingerprint
        if is_beside:
            self.beside.add(len(self._fingerprints))
        self._fingerprints.append(replace(fingerprint, messages=(*fingerprint.messages, answer)))


def arguments_of(text: str, otherwise: str = "arguments") -> dict[str, Any]:
    """A call's arguments; where the text is not a JSON object, the text as one argument of the name `otherwise`."""
    try:
        found: Any = from_json(text)  # strict: no half of a surrogate pair, nothing too deep
    except ValueError:
        found = None
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {otherwise: text}


def _digest(value: Any) -> Key:
    return hashlib.sha256(canonical_json(value).encode(errors="replace")).digest()[:16]
