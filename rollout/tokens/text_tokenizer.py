"""`TextTokenizer`: a tokenizer under which the marked texts of a rendered conversation have no control ids."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.rollout.formats.control_text import ControlText, is_marked
from mcp_rollout.rollout.formats.format import Format
from mcp_rollout.rollout.types import Message

_GUARDS = ("", "\n", ".", "a")
"""Texts before which a part is tokenised, where a tokenizer treats the beginning of a text in a way of its own."""
_WHITESPACE = " \t\r\n\u2581"
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
_WIDE = {code: code + 0xFEE0 for code in range(0x21, 0x7F)}


class TextTokenizer:
    """A tokenizer in front of `tokenizer`, with the same results for all texts without breaks.

    What is not here is the tokenizer's own.
    """

    def __init__(self, tokenizer: Any, control: ControlText) -> None:
        self._wrapped, self.control = tokenizer, control

    def __getattr__(self, name: str) -> Any:
        if name == "_wrapped":  # while a copy is made
            raise AttributeError(name)
        return getattr(self._wrapped, name)

    def __call__(self, text: str | list[str], **options: Any) -> Any:
        """As the tokenizer's own, which processors of images call."""
        texts = [text] if isinstance(text, str) else text
        if not any(map(is_marked, texts)):
            return self._wrapped(text, **options)
        before, after = self._added if options.get("add_special_tokens", True) else ([], [])
        ids = [[*before, *self.encode_text(each), *after] for each in texts]
        shape = {name: options[name] for name in ("padding", "max_length", "return_tensors") if name in options}
        return self._wrapped.pad({"input_ids": ids[0] if isinstance(text, str) else ids}, **shape)

    def encode(self, text: str, **options: Any) -> list[int]:
        """As the tokenizer's own; nothing is added to a text with breaks."""
        return self.encode_text(text) if is_marked(text) else self._wrapped.encode(text, **options)

    def apply_chat_template(self, messages: list[Message], **options: Any) -> Any:
        """As the tokenizer's own."""
        if options.get("tokenize", True) and not options.get("return_dict", True):
            text: str = self._wrapped.apply_chat_template(messages, **{**options, "tokenize": False})
            if is_marked(text):
                return self.encode_text(text)
        return self._wrapped.apply_chat_template(messages, **options)

    def encode_text(self, text: str) -> list[int]:
        """Ids of a text, nothing added. Markers are recognised, but for those with a break in them."""
        if not is_marked(text):
            return self._encode(text)
        first, *rest = self.control.parts(text)
        return [*self._encode(first), *(id for part in rest for id in self._continued(part, self._guard))]

    def decode_ids(self, ids: Sequence[int]) -> str:
        """Text of ids, markers included."""
        return decode(self._wrapped, ids)

    def check(self) -> None:
        """Raises ConfigError where texts with spellings of control tokens cannot be tokenised as text."""
        # One of many that differ in a number is enough, as in the hundreds of unused tokens that some have.
        for spelling in {re.sub(r"\d+", "0", each): each for each in self.control.spellings}.values():
            text = f"a{spelling} b"
            ids = self.encode_text(self.control.mark(text))
            if not self._control_ids.isdisjoint(ids) or not self._reads(ids, text):
                raise _refusal(f"cannot tokenise the text {spelling!r} without its control token")
            # A tokenizer that normalises texts could find a token in another spelling of it.
            for other in (spelling.upper(), spelling.lower(), spelling.translate(_WIDE)):
                if self.control.mark(other) == other and not self._control_ids.isdisjoint(self._encode(other)):
                    raise _refusal(f"takes the text {other!r} for the control token {spelling!r}")

    def _encode(self, text: str) -> list[int]:
        return list(self._wrapped.encode(text, add_special_tokens=False))

    def _continued(self, text: str, guard: str) -> list[int]:
        """Ids of a text that continues another one."""
        before = self._encode(guard) if guard else []
        ids = self._encode(guard + text)
        return ids[len(before) :] if ids[: len(before)] == before else self._encode(text)

    def _reads(self, ids: Sequence[int], text: str) -> bool:
        # A space may be written before a whole text, as always; and what normalises texts does so to both.
        read, whole = (self.decode_ids(each).lstrip() for each in (ids, self._encode(text)))
        return read in (text, whole)

    @cached_property
    def _guard(self) -> str:
        """The text before which a part is tokenised; the first with which a broken text decodes to itself."""
        spelling = min(self.control.spellings, key=len)
        head, *rest = self.control.parts(self.control.mark(f"a{spelling}b"))
        for guard in _GUARDS:
            ids = [*self._encode(head), *(id for part in rest for id in self._continued(part, guard))]
            if self._reads(ids, f"a{spelling}b"):
                return guard
        return ""

    @cached_property
    def _control_ids(self) -> frozenset[int]:
        # Tokens of bytes spell ordinary texts, although some tokenizers list them with the control tokens.
        found = (self._encode(each) for each in self.control.spellings if not _BYTE.fullmatch(each))
        return frozenset(ids[0] for ids in found if len(ids) == 1)

    @cached_property
    def _added(self) -> tuple[list[int], list[int]]:
        """Ids that the tokenizer adds before and after a text."""
        whole: list[int] = self._wrapped.encode("a")
        own = self._encode("a")
        at = next((at for at in range(len(whole)) if whole[at : at + len(own)] == own), 0)
        return whole[:at], whole[at + len(own) :]


def control_text_of(tokenizer: Any, format: Format) -> ControlText:
    """The spellings of a tokenizer's added vocabulary and of a format's markers.

    Added runs of whitespace, and single characters that are not special, are text like any other.
    """
    added: dict[int, Any] = tokenizer.added_tokens_decoder
    special = {*tokenizer.all_special_tokens, *(token.content for token in added.values() if token.special)}
    if single := sorted(text for text in special if len(text) == 1):
        raise _refusal(f"has the control token {single[0]!r}, of one character")
    own = {text for text in (*special, *tokenizer.get_added_vocab()) if len(text) > 1 and text.strip(_WHITESPACE)}
    return ControlText(own | format.markers)


def with_text_tokenizer(processor: Any, control: ControlText) -> Any:
    """A processor of images that tokenises marked texts."""
    if isinstance(processor.tokenizer, TextTokenizer):
        return processor
    made = copy.copy(processor)
    made.tokenizer = TextTokenizer(processor.tokenizer, control)
    return made


def placeholders_of(processor: Any) -> ControlText:
    """The texts that a processor replaces by images, videos and sound.

    A trainer decodes a trajectory and has the processor read that text once more, so it may not have them as text.
    """
    named = (getattr(processor, f"{kind}_token", None) for kind in ("image", "video", "audio"))
    return ControlText({text for text in named if isinstance(text, str)})


def decode(tokenizer: Any, ids: Sequence[int]) -> str:
    """Text of ids as the tokenizer has it, markers included."""
    return tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)


def _refusal(problem: str) -> ConfigError:
    return ConfigError(
        f"the model's tokenizer {problem}, so that texts could open turns and calls",
        key="tokenizer",
        remedy="use a tokenizer whose control tokens can be written as text",
    )
