"""Gemma's calls: `call:NAME{key:value}`, strings between `<|"|>`; lists and mappings nest."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from mcp_rollout.gateway.schemas.extent import MOST_NESTED, measure
from mcp_rollout.rollout.formats.format import BlockFormat, Tools, quoted
from mcp_rollout.rollout.types import Call

_QUOTE = '<|"|>'
_CALL = re.compile(r"\s*call:([^{]*)(\{.*\})\s*", re.DOTALL)
_SPACE = re.compile(r"\s*")
_BARE = re.compile(r"[^,{}\[\]]*")
_KEY = re.compile(r"[^:,{}\[\]<]+")
_WORDS = {"true": True, "false": False, "null": None}


class _GemmaFormat(BlockFormat):
    def read_block(self, body: str, tools: Tools) -> list[Call]:
        """The one call of a block."""
        match = _CALL.fullmatch(body)
        if match is None:
            name = body.strip().removeprefix("call:").partition("{")[0].strip()
            return [self.unreadable(f"The tool call is {quoted(body)}", name=name)]
        name = match.group(1).strip()
        try:
            return [Call(name=name, arguments=_Parser(match.group(2)).arguments())]
        except ValueError as error:
            return [self.unreadable(f"The arguments cannot be read: {error}", name=name)]


@dataclass(slots=True)
class _Parser:
    """A recursive-descent parser of values; its ValueError says what was expected, and where."""

    text: str
    position: int = 0

    def arguments(self) -> dict[str, object]:
        read = self._mapping(0)
        if self.position < len(self.text):
            raise ValueError(f"text after the last brace at {self.position}")
        measure(read)  # raises for numbers and text that JSON cannot hold
        return read

    def _value(self, depth: int) -> object:
        if depth > MOST_NESTED:
            raise ValueError(f"nested more than {MOST_NESTED} deep")
        if self._take(_QUOTE):
            return self._quoted()
        if self.text.startswith("{", self.position):
            return self._mapping(depth)
        if self.text.startswith("[", self.position):
            return [self._value(depth + 1) for _ in self._items("[", "]")]
        return self._bare()

    def _mapping(self, depth: int) -> dict[str, object]:
        read: dict[str, object] = {}
        for _ in self._items("{", "}"):
            key = self._key()
            if key in read:
                raise ValueError(f"{key!r} is given twice")
            read[key] = self._value(depth + 1)
        return read

    def _items(self, opening: str, ending: str) -> Iterator[None]:
        """Stop at each item between the brackets, for the caller to read it."""
        self._expect(opening)
        if self._take(ending):
            return
        yield
        while self._take(","):
            yield
        self._expect(ending)

    def _key(self) -> str:
        if self._take(_QUOTE):
            key = self._quoted()
        elif (match := _KEY.match(self.text, self.position)) is not None:
            key, self.position = match.group(0).strip(), match.end()
        else:
            raise ValueError(f"no name at {self.position}")
        self._expect(":")
        return key

    def _quoted(self) -> str:
        end = self.text.find(_QUOTE, self.position)
        if end < 0:
            raise ValueError(f"no closing {_QUOTE} after {self.position}")
        read, self.position = self.text[self.position : end], end + len(_QUOTE)
        return read

    def _bare(self) -> object:
        start, self.position = self.position, _end(_BARE, self.text, self.position)
        word = self.text[start : self.position].strip()
        if _QUOTE in word:
            raise ValueError(f"a comma is missing at {start}")
        if word.lower() in _WORDS:
            return _WORDS[word.lower()]
        for number in (int, float):
            try:
                return number(word)
            except ValueError:
                continue
        return word

    def _take(self, piece: str) -> bool:
        """Skip whitespace, and `piece` if it is next."""
        self.position = _end(_SPACE, self.text, self.position)
        if not self.text.startswith(piece, self.position):
            return False
        self.position += len(piece)
        return True

    def _expect(self, piece: str) -> None:
        if not self._take(piece):
            raise ValueError(f"no {piece} at {self.position}")


def _end(pattern: re.Pattern[str], text: str, position: int) -> int:
    """Where a match at `position` ends."""
    match = pattern.match(text, position)
    return match.end() if match else position


GEMMA4 = _GemmaFormat(
    name="gemma4",
    call_syntax=f"write <|tool_call>call:NAME{{key:{_QUOTE}text{_QUOTE},other:1}}<tool_call|>",
    think=("<|channel>thought", "<channel|>"),
    call=("<|tool_call>", "<tool_call|>"),
    end_tokens=("<turn|>", "<|tool_response>", "<eos>"),
    truncated_end=("<tool_call|>", "<turn|>"),
    around_think_end=("", ""),
    more_markers=(_QUOTE,),
)
