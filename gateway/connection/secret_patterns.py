"""Patterns that find a secret in a text as it is and as common encodings spell it."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from functools import cached_property

from pydantic_core import SchemaValidator, core_schema

_PIECE = 8
"""Characters of a secret that are looked for at a time: an automaton for more of them may not fit into memory."""
_PIECES = 4
"""Parts of a long secret that are looked for; the whole is compared only in texts that have all of them."""
_LONGEST_SPELLING = 120
"""The most characters that spell one."""
_WINDOW = 1 << 15
"""Characters of a text that are searched for whole secrets at a time."""
_NAMED = {"&": "|amp", "<": "|lt", ">": "|gt", '"': "|quot", "'": "|apos"}
_SLASH = r"(?:\\|%(?:25){0,3}5[cC])"
_SHORT = {"\n": f"|{_SLASH}{{1,7}}n", "\r": f"|{_SLASH}{{1,7}}r", "\t": f"|{_SLASH}{{1,7}}t", " ": r"|\+"}
_BREAK = f"(?:{_SLASH}{{1,7}}[rn]|[\\r\\n]){{0,4}}"
_UNICODE = SchemaValidator(core_schema.str_schema())
"""Takes no text with half a surrogate pair."""
_MOST_SPELLED = 100
"""Characters of a secret up to which entities of HTML and base64 over lines are found, since patterns are compiled."""


class SecretPattern:
    """One secret value: as it is; with any mixture of percent-encoding (also twice), escapes of JSON (also within JSON)
    and entities of HTML for all but ASCII letters and digits; and in base64, within longer data and over lines too.

    Repetitions are bounded, so that the time of a search is linear in the text.
    """

    def __init__(self, value: str) -> None:
        self.value, encoded = value, value.encode("utf-8", "replace")
        self.longest = _LONGEST_SPELLING * len(value)
        """Characters of the longest text that spells it."""
        self.usual = (value, base64.b64encode(encoded).decode())
        """The usual texts of it, of which a text that was cut may begin with the end."""
        is_short = len(value) <= _MOST_SPELLED
        self._spellings = [[_spelled(char, html=is_short) for char in value], *_in_base64(encoded, broken=is_short)]
        self._beginning = self._piece(0)

    def _piece(self, number: int) -> SchemaValidator:
        """Whether a text has a part of a spelling. Rust's engine says no more, and is faster than Python's."""
        begins = [max(0, len(units) - _PIECE) * number // (_PIECES - 1) for units in self._spellings]
        pieces = ("".join(units[at : at + _PIECE]) for at, units in zip(begins, self._spellings, strict=True))
        return SchemaValidator(core_schema.str_schema(pattern="|".join(pieces), regex_engine="rust-regex"))

    @cached_property
    def _others(self) -> list[SchemaValidator]:
        return [self._piece(number) for number in range(1, _PIECES)]

    @cached_property
    def _whole(self) -> re.Pattern[str]:
        return re.compile("|".join("".join(units) for units in self._spellings))

    def may_be_in(self, text: str | bytes) -> bool:
        """Whether all pieces of a spelling are in a text; true for text with half a surrogate pair."""
        if not self._beginning.isinstance_python(text):
            return not _UNICODE.isinstance_python(text)
        return all(piece.isinstance_python(text) for piece in self._others)

    def places(self, text: str) -> Iterator[tuple[int, int]]:
        """The beginning and the end of each spelling in a text."""
        searched = 0
        for begin in range(0, len(text), _WINDOW):
            window = text[begin : begin + _WINDOW + self.longest]
            if not self.may_be_in(window):
                continue
            for found in self._whole.finditer(text, max(begin, searched), begin + len(window)):
                if found.start() < begin + _WINDOW:  # else the next window has all of it
                    searched = found.end()
                    yield found.span()


def _spelled(char: str, *, html: bool) -> str:
    """A pattern of one character's spellings, for Python's engine and for Rust's."""
    if char.isascii() and char.isalnum():
        return char
    code, encoded, units = ord(char), char.encode("utf-8", "replace"), char.encode("utf-16-be", "replace")
    own = f"\\x{code:02x}" if code < 256 else char
    percent = "".join(_percent(byte) for byte in encoded)
    numbers = f"(?:#|{_percent(35)})(?:0{{0,6}}{code}|x0{{0,6}}{code:x})"
    begin, end = (f"(?:{mark}|{_percent(ord(mark))})" for mark in "&;")
    entity = f"|{begin}(?:amp{end}){{0,3}}(?:{numbers}{_NAMED.get(char, '')}){end}" if html else ""
    escape = "".join(f"{_SLASH}{{1,7}}u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
    found = f"(?i:{_SLASH}{{0,7}}(?:{own}|{percent}{entity})|{escape}{_SHORT.get(char, '')})"
    # The lines of a key may be joined, or end otherwise.
    return rf"(?:{found}|[\r ]){{0,4}}" if char == "\n" else found


def _percent(byte: int) -> str:
    return f"%(?:25){{0,3}}{byte:02x}"


def _in_base64(secret: bytes, *, broken: bool) -> Iterator[list[str]]:
    """Alone, and within longer data: of that, a secret determines different characters for each place modulo 3."""
    spelled = {"+": f"(?:{_spelled('+', html=broken)}|-)", "/": f"(?:{_spelled('/', html=broken)}|_)"}
    line_end = _BREAK if broken else ""
    for before in range(3):
        text = base64.b64encode(b"\0" * before + secret).decode()
        begin, end = (before * 8 + 5) // 6, (before + len(secret)) * 8 // 6
        units = [spelled.get(char, char) + line_end for char in text[begin:end]]
        if rest := "" if before else text[end:].rstrip("="):
            units.append(f"(?:{spelled.get(rest, rest)}(?:=|%(?:25){{0,3}}3[dD]){{0,2}})?")
        yield units
