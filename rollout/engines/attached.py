"""What chat APIs attach to their messages: it goes back with them, unread.

APIs want their thinking back on the next turn (`reasoning_content`, `reasoning_details`, thinking blocks), or
signatures of calls (`extra_content`). The context keeps a number with the turn, so that what is attached stays with it
wherever the turn goes: behind a compaction, in a branch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from mcp_wire.chat_api import THINKING
from mcp_wire.control_text import break_control_text
from rollout.tokens.chatml import REFERENCE
from rollout.types import Message

MOST_ATTACHED = 1 << 20
"""Characters of JSON with one message; larger attachments are left out."""
MOST_KEPT = 256 << 20
"""Of all messages of a run together; the oldest are dropped."""
KEPT = "kept"
"""Key of a message read from a context: the number of what is attached, and whether its thinking is still there."""


class Attachments:
    """What was attached to the messages of a run. Not of a trajectory: the leaves of a tree share turns."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[int, Mapping[str, Any], bool]] = {}
        self._count = self._size = 0

    def keep(self, attached: Mapping[str, Any], *, is_thought: bool) -> list[int]:
        """Returns ids for the context, which have no text.

        Args:
            is_thought: whether the turn has a thought, with which its text in `attached` goes if it is dropped.
        """
        size = len(json.dumps(attached)) if attached else 0
        if not 0 < size <= MOST_ATTACHED:
            return []
        number, self._count = REFERENCE + self._count, self._count + 1
        self._kept[number], self._size = (size, attached, is_thought), self._size + size
        while self._size > MOST_KEPT:
            self._size -= self._kept.pop(next(iter(self._kept)))[0]
        return [number]

    def restored(self, messages: Sequence[Message]) -> list[Message]:
        """The messages with what is attached to them, and with the API's own ids of calls where these are unique."""
        taken = {call["id"] for message in messages for call in message.get("tool_calls", ())}
        ids: dict[str, str] = {}
        restored: list[Message] = []
        for message in messages:
            if message["role"] == "tool":
                call_id = message["tool_call_id"]
                restored.append(message | {"tool_call_id": ids.get(call_id, call_id)})
                continue
            number, has_thought = message.get(KEPT, (0, True))
            _, attached, is_thought = self._kept.get(number, (0, {}, False))
            further = dict(attached)
            calls = list(message.get("tool_calls", ()))
            for index, own in enumerate(further.pop("tool_calls", ())[: len(calls)]):
                call = calls[index]
                if isinstance(id := own.get("id"), str) and id and id not in taken:
                    taken.add(id)
                    ids[call["id"]] = id
                function = {**own.get("function", {}), **call["function"]}
                calls[index] = {**own, **call, "id": ids.get(call["id"], call["id"]), "function": function}
            if is_thought and not has_thought:  # the environment has dropped it
                further = {key: value for key, value in further.items() if key not in (*THINKING, "content")}
            further = {key: _broken(value) for key, value in further.items()}
            plain = {key: value for key, value in message.items() if key != KEPT}
            restored.append(plain | further | ({"tool_calls": calls} if calls else {}))
        return restored


def _broken(value: Any) -> Any:
    """Texts that the API's own template renders, without control tokens but for those of a thought at the beginning."""
    if isinstance(value, list):
        return [_broken_part(part) for part in cast("list[Any]", value)]
    if not isinstance(value, str):
        return value
    thought, end, said = value.partition("</think>")
    opening = "<think>" if end and thought.lstrip().startswith("<think>") else ""
    return opening + break_control_text(thought.replace(opening, "", 1)) + end + break_control_text(said)


def _broken_part(part: Any) -> Any:
    """A part of a content. One with more than a text may be signed, and stays as it is."""
    plain: dict[str, Any] = cast("dict[str, Any]", part) if isinstance(part, dict) else {}
    is_text = plain.keys() == {"type", "text"} and isinstance(plain["text"], str)
    return plain | {"text": break_control_text(plain["text"])} if is_text else cast("Any", part)
