"""Find text in tool definitions that is invisible to people but not to a model: invisible, bidi, control characters.

Such characters are not reported where they are part of ordinary writing: emoji, flags, joiners in scripts that need
them, a single variation selector after a symbol.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, cast

from anyio.lowlevel import checkpoint

from gateway.types import ToolDefinition

_TEXTS_AT_ONCE = 2000
"""Texts of tool definitions that are looked through before other tasks get their turn."""


class HiddenKind(StrEnum):
    """The kind of a run of hidden characters."""

    BIDI = "bidirectional control"
    """Displays text in another order than a model reads it."""
    TAG = "tag characters"
    """Invisible copies of ASCII, which can encode whole sentences."""
    ZERO_WIDTH = "zero-width characters"
    SELECTOR = "variation selectors"
    """In runs, or after a character without variants, they encode data."""
    CONTROL = "control characters"
    """Includes the escape sequences by which a terminal hides text."""
    INVISIBLE = "invisible characters"
    """Fillers, annotations and other characters without a shape."""
    UNEXAMINED = "more than is examined"


@dataclass(frozen=True, kw_only=True, slots=True)
class HiddenText:
    """One run of hidden characters of one kind."""

    where: str
    """The place of the text: `tool read: description`, `tool read: input_schema.properties.path.description`, ..."""
    kind: HiddenKind
    index: int
    """Start of the run in the text, in code points."""
    code_points: tuple[int, ...]
    of: str | None = None
    """The tool's own name; None if the text is not a tool's."""

    @property
    def decoded(self) -> str:
        """The ASCII text that tag characters or variation selectors encode; empty for the other kinds."""
        return "".join(filter(str.isprintable, map(_spelt, self.code_points)))

    def __str__(self) -> str:
        if self.kind is HiddenKind.UNEXAMINED:
            return f"{self.where}: {self.kind}, from {self.index} on"
        shown = " ".join(f"U+{point:04X}" for point in self.code_points[:_MAX_SHOWN])
        more = len(self.code_points) - _MAX_SHOWN
        text = f"{self.where}: {self.kind} at {self.index}: {shown}" + (f" and {more} more" if more > 0 else "")
        return text + (f", which spell {self.decoded[:200]!r}" if self.decoded else "")


_MAX_SHOWN = 8
_BIDI = frozenset([0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)])
_ZERO_WIDTH = frozenset([0x00AD, 0x034F, 0x180E, 0x200B, 0x200C, 0x200D, *range(0x2060, 0x2065), 0xFEFF])
_SELECTORS = frozenset([*range(0x180B, 0x180E), 0x180F, *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)])
_FILLERS = frozenset([0x115F, 0x1160, 0x17B4, 0x17B5, 0x2065, 0x2800, 0x3164, 0xFFA0])
_JOINERS = frozenset([0x200C, 0x200D])
_FLAG = "\U0001f3f4"
_REGION = re.compile(r"[a-z]{2}[a-z0-9]{1,3}")


_SUSPECT = re.compile(r"[^\x20-\x7e\t\n\r]+")
_MOST_EXAMINED = 50_000
"""Maximum characters outside printable ASCII that are examined in one text; ASCII is skipped at no cost."""
_MOST_FINDINGS = 100
"""Maximum findings in one text."""


@dataclass(slots=True)
class Budget:
    """How much of a server's texts may still be examined."""

    characters: int = 150_000
    findings: int = 1000


def find_hidden(text: str, where: str, budget: Budget | None = None, *, of: str | None = None) -> list[HiddenText]:
    """All runs of hidden characters in `text`, in order, up to the bounds above.

    The rest of a text beyond the bounds is one finding, since it may hide anything.

    Args:
        of: The tool that the text belongs to.
    """
    # Nearly all texts: one search, and nothing of the budget.
    if _SUSPECT.search(text) is None:
        return []
    budget = budget or Budget()
    findings: list[HiddenText] = []
    examined, most = 0, min(_MOST_EXAMINED, budget.characters)
    for stretch in _SUSPECT.finditer(text):
        start, stop = stretch.span()
        examined += stop - start
        if examined > most or len(findings) >= min(_MOST_FINDINGS, budget.findings):
            findings.append(HiddenText(where=where, kind=HiddenKind.UNEXAMINED, index=start, code_points=(), of=of))
            break
        while start < stop:
            kind = _kind(text[start])
            if kind is None:
                start += 1
                continue
            end = start + 1
            while end < stop and _kind(text[end]) is kind:
                end += 1
            if not _is_ordinary(text, start, end, kind):
                points = tuple(map(ord, text[start:end]))
                findings.append(HiddenText(where=where, kind=kind, index=start, code_points=points, of=of))
            start = end
    budget.characters -= min(examined, most)
    budget.findings -= len(findings)
    return findings


def find_hidden_in_tool(tool: ToolDefinition, budget: Budget | None = None) -> list[HiddenText]:
    """All hidden text in a tool's name, its description, and the keys and strings of its input schema."""
    budget = budget or Budget()
    return [found for where, text in texts_of(tool) for found in find_hidden(text, where, budget, of=tool.name)]


def texts_of(tool: ToolDefinition) -> Iterator[tuple[str, str]]:
    """The texts that `find_hidden_in_tool` looks through, each after its place."""
    name = tool.name.encode("ascii", "backslashreplace").decode()
    yield f"tool {name}: name", tool.name
    yield f"tool {name}: description", tool.description
    yield from _strings(tool.input_schema, f"tool {name}: input_schema")


def plain(text: str, budget: Budget | None = None) -> str:
    """`text` with hidden characters spelled out, for a terminal; text beyond the examined part is left out."""
    parts: list[str] = []
    done = 0
    for found in find_hidden(text, "", budget):
        parts.append(text[done : found.index])
        if found.kind is HiddenKind.UNEXAMINED:
            return "".join([*parts, f"<{len(text) - found.index} characters more>"])
        parts += [f"<U+{point:04X}>" for point in found.code_points]
        done = found.index + len(found.code_points)
    return "".join([*parts, text[done:]])


_HIDDEN = re.compile(
    # At least every character for which `_kind` is not None, and carriage returns.
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\xad\\u034f\\u0600-\\u0605\\u061c\\u06dd\\u070f\\u0890\\u0891\\u08e2\\u115f\\u1160\\u17b4\\u17b5"
    "\\u180b-\\u180f\\u200b-\\u200f\\u202a-\\u202e\\u2060-\\u206f\\u2800\\u3164\\ud800-\\uf8ff\\ufe00-\\ufe0f\\ufeff\\uffa0"
    "\\ufff0-\\ufffb\\U000110bd\\U000110cd\\U00013430-\\U0001343f\\U0001bca0-\\U0001bca3\\U0001d173-\\U0001d17a"
    "\\U000e0000-\\U000e0fff\\U000f0000-\\U0010ffff]"
)


def visible(text: str, form: Callable[[int], str] = "<U+{:04X}>".format) -> str:
    """All of `text`, with its hidden characters and lone carriage returns spelled out: for a terminal, a log, a report.

    Args:
        form: What stands for a code point.
    """

    parts: list[str] = []
    end = 0
    while (found := _HIDDEN.search(text, end)) is not None:
        start = found.start()
        parts.append(text[end:start])
        kind, end = _kind(text[start]), start + 1
        while kind is not None and end < len(text) and _kind(text[end]) is kind:
            end += 1
        run = text[start:end]
        is_moving = run == "\r" and text[end : end + 1] != "\n"
        is_hidden = kind is not None and not _is_ordinary(text, start, end, kind)
        parts.append("".join(map(form, map(ord, run))) if is_moving or is_hidden else run)
    return "".join([*parts, text[end:]])


def _kind(character: str) -> HiddenKind | None:
    point = ord(character)
    if point < 0x7F:
        return HiddenKind.CONTROL if point < 0x20 and character not in "\t\n\r" else None
    if 0xE0000 <= point <= 0xE007F:
        return HiddenKind.TAG
    if point in _BIDI:
        return HiddenKind.BIDI
    if point in _ZERO_WIDTH:
        return HiddenKind.ZERO_WIDTH
    if point in _SELECTORS:
        return HiddenKind.SELECTOR
    if point in _FILLERS:
        return HiddenKind.INVISIBLE
    match unicodedata.category(character):
        case "Cc":
            return HiddenKind.CONTROL
        case "Cf" | "Co" | "Cs":
            return HiddenKind.INVISIBLE
        case _:
            # Unassigned code points that Unicode reserves for characters without a glyph.
            return HiddenKind.INVISIBLE if 0xE0080 <= point <= 0xE0FFF or 0xFFF0 <= point <= 0xFFF8 else None


def _is_ordinary(text: str, start: int, end: int, kind: HiddenKind) -> bool:
    before, after = text[start - 1 : start], text[end : end + 1]
    if kind is HiddenKind.TAG:
        spelt = "".join(map(_spelt, map(ord, text[start : end - 1])))
        return before == _FLAG and text[end - 1] == "\U000e007f" and _REGION.fullmatch(spelt) is not None
    if end - start > 1 or not before:
        return False
    if kind is HiddenKind.SELECTOR:
        return _can_vary(before, ord(text[start]))
    if kind is HiddenKind.ZERO_WIDTH and ord(text[start]) in _JOINERS:
        return bool(after) and ((_is_pictured(before) and _is_pictured(after)) or _needs_joiners(before))
    if kind is HiddenKind.INVISIBLE:
        return 0x0600 <= ord(text[start]) <= 0x08E2  # Arabic number signs and similar ones, which have a glyph
    return False


def _can_vary(base: str, selector: int) -> bool:
    if selector >= 0xE0100 or selector <= 0xFE0D:  # ideographs, Mongolian and mathematical forms
        return ord(base) >= 0x1000 and unicodedata.category(base) in ("Lo", "Sm", "So", "Po")
    return base in "#*0123456789" or (ord(base) > 0x7F and unicodedata.category(base)[0] in "SPN")


def _is_pictured(character: str) -> bool:
    """Whether a joiner may connect it to another emoji: emoji, their skin tones and their selector."""
    return ord(character) == 0xFE0F or (ord(character) >= 0x2190 and unicodedata.category(character) in ("So", "Sk"))


def _needs_joiners(character: str) -> bool:
    """Whether it is a letter or mark of a script that is written with joiners, from Arabic to south-east Asian ones."""
    return 0x0600 <= ord(character) <= 0x1CFF and unicodedata.category(character)[0] in "LM"


def _spelt(point: int) -> str:
    if 0xE0020 <= point <= 0xE007E:
        return chr(point - 0xE0000)
    if 0xE0100 <= point <= 0xE01EF:  # the common way to put bytes into selectors
        return chr(point - 0xE0100 + 16)
    return ""


def _strings(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for name, inner in cast("Mapping[str, Any]", value).items():
            here = f"{path}.{name.encode('ascii', 'backslashreplace').decode()}"
            # Keys reach the model with the schema, like any text.
            yield f"{here} (the key)", name
            yield from _strings(inner, here)
    elif isinstance(value, list):
        for index, inner in enumerate(cast("list[Any]", value)):
            yield from _strings(inner, f"{path}[{index}]")


async def hidden_in(tools: Iterable[ToolDefinition], instructions: str) -> tuple[HiddenText, ...]:
    """The hidden text of a server's tools and instructions; other tasks get their turn meanwhile."""
    budget, examined = Budget(), 0
    findings = list[HiddenText]()
    for tool in tools:
        for where, text in texts_of(tool):
            findings += find_hidden(text, where, budget, of=tool.name)
            examined += 1
            # A schema may have tens of thousands of texts, and the budget bounds only what is examined in them.
            if examined % _TEXTS_AT_ONCE == 0:
                await checkpoint()
    return (*findings, *find_hidden(instructions, "instructions", budget))
