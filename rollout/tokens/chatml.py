"""A `TokenBuilder` without a model: ChatML in the hermes format over UTF-8 bytes.

A real, reversible tokenisation that needs only the standard library, for runs whose engine has no tokenizer (experts,
random policies). Runs with a model use that model's builder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from mcp_rollout.rollout.formats import hermes
from mcp_rollout.rollout.formats.control_text import BREAK, KNOWN, ControlText
from mcp_rollout.rollout.tokens.parsing import CompletionParser
from mcp_rollout.rollout.types import Call, Edit, Message, Parsed

IM_START, IM_END = "<|im_start|>", "<|im_end|>"
SPECIAL = (IM_START, IM_END, hermes.THINK_OPEN, hermes.THINK_CLOSE, hermes.CALL_OPEN, hermes.CALL_CLOSE)
_IDS = {text: 256 + index for index, text in enumerate(SPECIAL)}
_SPLIT, _SPLIT_IN_TURN = (re.compile(f"({'|'.join(map(re.escape, markers))})") for markers in (SPECIAL, SPECIAL[2:]))
_SPELLINGS = ControlText(SPECIAL)
_ATTACHED = 1 << 24
"""From here on an id is three bytes of what is attached to a turn."""

_TOOLS_HEAD = "\n\n# Tools\n\nCall tools as JSON objects between <tool_call> and </tool_call>.\n\n<tools>"
_TOOLS_TAIL = "\n</tools>"


class ByteTokens:
    """`TokenBuilder` over bytes: id 0-255 is a byte, the ids after it are the markers in `SPECIAL`.

    Only the builder itself writes markers; the same characters inside a tool's or user's text stay bytes, so no text
    can end its own message. What is attached to a turn (`encode_reply`) has ids of its own and no text.
    """

    thought = hermes.HERMES.thought
    stop_id = _IDS[IM_END]

    def encode(self, text: str) -> list[int]:
        """Ids of a completion's text, markers recognised."""
        return _joined(_SPLIT.split(text))

    def encode_turn(self, text: str) -> list[int]:
        """As `encode`, but the markers around messages are text: the policy was asked for one turn."""
        return _joined(_SPLIT_IN_TURN.split(text))

    def encode_text(self, text: str) -> list[int]:
        return list(text.encode())

    def encode_reply(
        self, *, thinking: str = "", content: str, calls: Sequence[Call], attached: Mapping[str, Any] | None = None
    ) -> list[int]:
        """Ids of a turn in which only the thoughts and calls given as such have markers, whatever the texts spell.

        What is attached, which is JSON, is dropped with the thought if there is one; `attached_to` reads it.
        """
        opening, ending = _IDS[hermes.THINK_OPEN], _IDS[hermes.THINK_CLOSE]
        written = json.dumps(attached).encode() + b"  " if attached else b""
        kept = [_ATTACHED + int.from_bytes(written[at : at + 3]) for at in range(0, len(written) - 2, 3)]
        thought = [opening, *f"\n{thinking}\n".encode(), *kept, ending, *b"\n\n"] if thinking else kept
        between = b"\n" if content and calls else b""
        return [*thought, *content.encode(), *between, *self.encode_turn(hermes.write(calls=calls))]

    def control_text(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> int:
        return KNOWN.count(messages, tools)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids; bytes that are not UTF-8 become U+FFFD."""
        return self._decoded(ids, lambda text: text)

    def _decoded(self, ids: Sequence[int], mark: Callable[[str], str] = _SPELLINGS.mark) -> str:
        """The text, with breaks in the markers that bytes spell outside calls."""
        pieces: list[str] = []
        start, ids = 0, [token for token in ids if token < _ATTACHED]
        for at in [*(index for index, token in enumerate(ids) if token > 255), len(ids)]:
            text = bytes(ids[start:at]).decode(errors="replace")
            is_call = start > 0 and ids[start - 1] == _IDS[hermes.CALL_OPEN]
            pieces.append(text if is_call else mark(text))
            pieces += [SPECIAL[token - 256] for token in ids[at : at + 1]]
            start = at + 1
        return "".join(pieces)

    def sees(self, image: bytes) -> bool:
        return False

    def prompt(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[int]:
        system = [message for message in messages[:1] if message["role"] == "system"]
        text = system[0]["content"] if system else ""
        if tools or _TOOLS_HEAD in text:  # what a system message quotes is not taken for the tools
            text += _TOOLS_HEAD + "".join("\n" + json.dumps(tool, ensure_ascii=False) for tool in tools) + _TOOLS_TAIL
        ids = self._message("system", text) if text else []
        for message in messages[len(system) :]:
            calls = [call["function"] for call in message.get("tool_calls") or ()]
            written = [Call(name=call["name"], arguments=call["arguments"]) for call in calls]
            between = "\n" if written and message["content"] else ""
            ids += self._message(message["role"], message["content"] + between)
            ids[-2:-2] = self.encode_reply(content="", calls=written)  # before the message's end
        return ids + self._generation_prompt()

    def completion(self, context: list[int], sampled: list[int]) -> Edit:
        return Edit(appended=sampled)

    def messages(
        self,
        context: list[int],
        previous: Sequence[Message],
        new: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
    ) -> Edit:
        # A completion cut at its length limit lacks the end of its message.
        inserted = [] if context[-1:] == [self.stop_id] else [self.stop_id]
        ids = list(b"\n")
        for message in new:
            ids += self._message(message["role"], message["content"])
        return Edit(inserted=inserted, appended=ids + self._generation_prompt())

    async def parse(self, sampled: list[int], tools: Sequence[Mapping[str, Any]]) -> Parsed:
        ids = sampled[:-1] if sampled[-1:] == [self.stop_id] else sampled
        parsed = CompletionParser(format=hermes.HERMES, decode=self._decoded, token_of=_IDS.get).parse(ids, ())
        texts = {"content": parsed.content.replace(BREAK, ""), "thinking": parsed.thinking.replace(BREAK, "")}
        return replace(parsed, **texts)

    def _message(self, role: str, text: str) -> list[int]:
        return [_IDS[IM_START], *f"{role}\n{text}".encode(), _IDS[IM_END], *b"\n"]

    def _generation_prompt(self) -> list[int]:
        return [_IDS[IM_START], *b"assistant\n"]


def _joined(pieces: Sequence[str]) -> list[int]:
    """Ids of texts and markers in turn."""
    return [id for index, piece in enumerate(pieces) for id in ([_IDS[piece]] if index % 2 else piece.encode())]


def attached_to(turn: Sequence[int]) -> dict[str, Any]:
    """What `encode_reply` attached to a turn; nothing if a limit has cut it."""
    try:
        written = b"".join((token - _ATTACHED).to_bytes(3) for token in turn if token >= _ATTACHED)
        return json.loads(written or b"{}")
    except ValueError:
        return {}


def tools_of(ids: Sequence[int]) -> list[dict[str, Any]]:
    """The schemas of the tools in a context that `ByteTokens` rendered."""
    first = bytes(ids[1 : ids.index(_IDS[IM_END])]).decode()
    _, head, listed = first.rpartition(_TOOLS_HEAD)
    is_told = first.startswith("system\n") and head
    return [json.loads(line) for line in listed.removesuffix(_TOOLS_TAIL).split("\n")[1:]] if is_told else []


def split_messages(ids: Sequence[int]) -> Iterator[tuple[str, list[int]]]:
    """The role and the body of each message of a context that `ByteTokens` rendered, without the tools' schemas.

    The context ends where the policy continues, so its last message has no body and is left out.
    """
    opening, ending = _IDS[IM_START], _IDS[IM_END]
    starts = [index for index, token in enumerate(ids) if token == opening]
    for start, end in pairwise(starts):
        message = list(ids[start + 1 : end])
        newline = message.index(ord("\n"))
        role, body = bytes(message[:newline]).decode(), message[newline + 1 :]
        body = body[: body.index(ending)] if ending in body else body
        if role == "system":
            text, head, tools = bytes(body).decode(errors="replace").rpartition(_TOOLS_HEAD)
            body = list((text if head else tools).encode())
            if not body:
                continue
        yield role, body
