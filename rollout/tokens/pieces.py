"""`Pieces`: a tokenizer that tokenises a rendered conversation piece by piece, and keeps the pieces that come again.

Most of a rendered turn is the same text as in the turn before: the template's own, and verl's stand-ins for earlier
messages. A tokenizer splits text at its markers (`<|im_start|>`) before anything else, so that what is between two of
them can be tokenised alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from mcp_rollout.rollout.formats.control_text import NO_CONTROL, ControlText
from mcp_rollout.rollout.tokens.text_tokenizer import TextTokenizer, decode
from mcp_rollout.rollout.types import Message

T = TypeVar("T")

_SHORT, _KEPT = 2000, 1024
"""Characters of a piece that is kept, and how many are."""
_SHORT_CONVERSATION, _KEPT_CONVERSATIONS = 4000, 256
"""The same of conversations, as JSON."""
_PROBES = (
    "",
    "a",
    " a",
    "a ",
    "\n",
    "\n\n a",
    "\t",
    "1",
    "é",
    "\u4e2d\u6587",
    "\U0001f351",
    "\u0301",
    '{"a": [1]}\n',
    "A.",
)
"""Texts beside a marker, for each way in which a tokenizer may treat the beginning or end of a text."""


class Pieces(TextTokenizer):
    """A tokenizer in front of `tokenizer`, with the same results.

    Args:
        markers: id of each marker, from `markers_of`.
    """

    def __init__(self, tokenizer: Any, markers: Mapping[str, int], control: ControlText) -> None:
        super().__init__(tokenizer, control)
        self._markers = markers
        self._backend: Any = tokenizer.backend_tokenizer
        self._split = re.compile("(" + "|".join(map(re.escape, sorted(markers, key=len, reverse=True))) + ")").split
        self._is_marker = re.compile("|".join(map(re.escape, markers))).match
        self._ends = tuple(markers)
        self._ids: dict[str, list[int]] = {}
        self._conversations: dict[str, list[int]] = {}
        self._texts: dict[str, str] = {}
        # A template that writes the time renders the same conversation differently.
        self._keeps = "strftime_now" not in tokenizer.chat_template

    @classmethod
    def of(
        cls,
        tokenizer: Any,
        conversations: Iterable[tuple[list[Message], Sequence[Any]]],
        control: ControlText = NO_CONTROL,
    ) -> Pieces | None:
        """`tokenizer` in pieces, or None if that would give other ids.

        Args:
            conversations: messages and tools, tried out.
        """
        markers = markers_of(tokenizer)
        if not markers:
            return None
        made = cls(tokenizer, markers, control)
        return made if made._is_faithful() and all(made._renders_alike(*each) for each in conversations) else None

    def apply_chat_template(self, messages: list[Message], **options: Any) -> Any:
        """As the tokenizer's own; ids without further columns come from the pieces."""
        if not options.get("tokenize", True) or options.get("return_dict", True):
            return self._wrapped.apply_chat_template(messages, **options)
        # verl renders what goes before the new messages without a generation prompt: its stand-ins, again and again.
        key = "" if options.get("add_generation_prompt") or not self._keeps else _key(messages, options)
        if (known := self._conversations.get(key)) is not None:
            return known.copy()
        text: str = self._wrapped.apply_chat_template(messages, **{**options, "tokenize": False})
        ids = self.encode_text(text)
        if key:
            _keep(self._conversations, _KEPT_CONVERSATIONS, key, ids.copy())
        return ids

    def appended_ids(self, past: list[Message], new: list[Message], **options: Any) -> list[int] | None:
        """Ids that rendering `past` and `new` has beyond those of `past` alone, which are not tokenised again.

        Args:
            options: as for `apply_chat_template`; a generation prompt is for the end of `new`.

        Returns:
            None if that is not certain: the rendering of `past` is not a beginning of the other, or does not end at
            a marker.
        """
        alone = {**options, "tokenize": False, "add_generation_prompt": False}
        key = _key(past, alone) if self._keeps else ""
        before = self._texts.get(key) if key else None
        if before is None:
            before = self._wrapped.apply_chat_template(past, **alone)
            if key:
                _keep(self._texts, _KEPT_CONVERSATIONS, key, before)
        text: str = self._wrapped.apply_chat_template([*past, *new], **{**options, "tokenize": False})
        end = len(before)
        # No marker shares text with another one, so that none lies across the end.
        if text.startswith(before) and (self._is_marker(text, end) or before.endswith(self._ends)):
            return self.encode_text(text[end:])
        return None

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = []
        # A split by one group gives text and marker in turn.
        for index, piece in enumerate(self._split(text)):
            if index % 2:
                ids.append(self._markers[piece])
            elif piece:
                ids += self._piece(piece)
        return ids

    def decode_ids(self, ids: Sequence[int]) -> str:
        """Text of ids, markers included."""
        return self._backend.decode(ids, skip_special_tokens=False)

    def _piece(self, text: str) -> list[int]:
        if (known := self._ids.get(text)) is not None:
            return known
        backend = self._backend
        # Settings that a call of the tokenizer may leave behind, and that its next call resets.
        if backend.truncation is None and backend.padding is None and not backend.encode_special_tokens:
            ids = backend.encode(text, add_special_tokens=False).ids
        else:
            ids = self._wrapped.encode(text, add_special_tokens=False)
        if len(text) < _SHORT:
            _keep(self._ids, _KEPT, text, ids)
        return ids

    def _is_faithful(self) -> bool:
        texts = [
            f"{before}{marker}{after}{marker}"
            for marker in self._markers
            for before, after in zip(_PROBES, (*_PROBES[3:], *_PROBES[:3]), strict=True)
        ]
        return all(self._is_alike(text) for text in texts)

    def _is_alike(self, text: str) -> bool:
        ids = self._wrapped.encode(text, add_special_tokens=False)
        return self.encode_text(text) == ids and self.decode_ids(ids) == decode(self._wrapped, ids)

    def _renders_alike(self, messages: list[Message], tools: Sequence[Any]) -> bool:
        options = {"tools": list(tools) or None, "tokenize": True, "add_generation_prompt": True, "return_dict": False}
        try:
            expected = self._wrapped.apply_chat_template(messages, **options)
        except Exception:  # the template's boundary, as in `narrow_view`: it refuses both alike
            return True
        return list(expected) == self.apply_chat_template(messages, **options)


def markers_of(tokenizer: Any) -> dict[str, int]:
    """Ids of the markers that a chat template writes and at which its tokenizer splits text; empty if it has none.

    A marker that shares text with another added token, or that takes spaces beside it, is not a place to split at.
    """
    template, backend = tokenizer.chat_template, getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or not isinstance(template, str):
        return {}
    added = backend.get_added_tokens_decoder()
    texts = [token.content for token in added.values()]
    return {
        token.content: id
        for id, token in added.items()
        if token.content in template
        and not (token.lstrip or token.rstrip or token.single_word or token.normalized)
        and not any(_touch(token.content, other) for other in texts)
    }


def _touch(one: str, other: str) -> bool:
    """Whether two texts can share characters: one contains the other, or begins as the other ends."""
    if one != other and (one in other or other in one):
        return True
    shorter = min(len(one), len(other))
    return any(one[-size:] == other[:size] or other[-size:] == one[:size] for size in range(1, shorter))


def _key(messages: list[Message], options: Mapping[str, Any]) -> str:
    """What determines a rendering; empty for one that is not kept."""
    if len(messages) > 3:
        return ""
    try:
        key = json.dumps([messages, options])
    except TypeError:  # images, for example
        return ""
    return key if len(key) <= _SHORT_CONVERSATION else ""


def _keep(kept: dict[str, T], most: int, key: str, value: T) -> None:
    if len(kept) >= most:
        del kept[next(iter(kept))]
    kept[key] = value
