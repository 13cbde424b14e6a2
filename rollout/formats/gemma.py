"""Gemma's calls: `call:NAME{key:value}`, where a string stands between `<|"|>` and lists and mappings nest."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rollout.formats.blocks import quoted
from rollout.formats.reading import Tools
from rollout.types import Call

QUOTE = '<|"|>'
SHAPE = f"write <|tool_call>call:NAME{{key:{QUOTE}text{QUOTE},other:1}}<tool_call|>"
_CALL = re.compile(r"\s*call:([^{]*)(\{.*\})\s*", re.DOTALL)
_BARE = re.compile(r"[^,{}\[\]]*")
_KEY = re.compile(r"[^:,{}\[\]<]+")
_DEEPEST = 64
_WORDS = {"true": True, "false": False, "null": None}


def read_block(body: str, tools: Tools) -> list[Call]:
    """The one call of a block."""
    match = _CALL.fullmatch(body)
    if match is None:
        name = body.strip().removeprefix("call:").partition("{")[0].strip()
        return [Call(name=name, problem=f"The tool call is {quoted(body)}; {SHAPE}.")]
    name = match.group(1).strip()
    try:
        return [Call(name=name, arguments=_Notation(match.group(2)).whole())]
    except ValueError as error:
        return [Call(name=name, problem=f"The arguments cannot be read: {error}; {SHAPE}.")]


@dataclass(slots=True)
class _Notation:
    """Reads one value after another; ValueError says what was expected, and where."""

    text: str
    position: int = 0

    def whole(self) -> dict[str, object]:
        read = self._mapping(0)
        if self.position < len(self.text):
            raise ValueError(f"text after the last brace at {self.position}")
        return read

    def _value(self, depth: int) -> object:
        if depth > _DEEPEST:
            raise ValueError("nested too deeply")
        self._space()
        if self._take(QUOTE):
            return self._quoted()
        if self.text.startswith("{", self.position):
            return self._mapping(depth)
        if self.text.startswith("[", self.position):
            return self._list(depth)
        return self._bare()

    def _mapping(self, depth: int) -> dict[str, object]:
        read: dict[str, object] = {}
        self._expect("{")
        if self._take("}"):
            return read
        while True:
            key = self._key()
            if key in read:
                raise ValueError(f"{key!r} is given twice")
            read[key] = self._value(depth + 1)
            if not self._take(","):
                self._expect("}")
                return read

    def _list(self, depth: int) -> list[object]:
        read: list[object] = []
        self._expect("[")
        if self._take("]"):
            return read
        while True:
            read.append(self._value(depth + 1))
            if not self._take(","):
                self._expect("]")
                return read

    def _key(self) -> str:
        self._space()
        if self._take(QUOTE):
            key = self._quoted()
        else:
            match = _KEY.match(self.text, self.position)
            if match is None:
                raise ValueError(f"no name at {self.position}")
            key, self.position = match.group(0).strip(), match.end()
        self._expect(":")
        return key

    def _quoted(self) -> str:
        end = self.text.find(QUOTE, self.position)
        if end < 0:
            raise ValueError(f"no closing {QUOTE} after {self.position}")
        read, self.position = self.text[self.position : end], end + len(QUOTE)
        return read

    def _bare(self) -> object:
        match = _BARE.match(self.text, self.position)
        word = match.group(0).strip() if match else ""
        if match is None or QUOTE in word:
            raise ValueError(f"a comma is missing at {self.position}")
        self.position = match.end()
        if word.lower() in _WORDS:
            return _WORDS[word.lower()]
        for number in (int, float):
            try:
                return number(word)
            except ValueError:
                continue
        return word

    def _space(self) -> None:
        while self.position < len(self.text) and self.text[self.position].isspace():
            self.position += 1

    def _take(self, piece: str) -> bool:
        self._space()
        if not self.text.startswith(piece, self.position):
            return False
        self.position += len(piece)
        return True

    def _expect(self, piece: str) -> None:
        if not self._take(piece):
            raise ValueError(f"no {piece} at {self.position}")
