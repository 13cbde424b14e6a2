"""Find text in tool definitions that is invisible to people but not to a model: invisible, bidi, control characters.

Such characters are not reported where they are part of ordinary writing: emoji, flags, joiners in scripts that need
them, a single variation selector after a symbol.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from anyio.lowlevel import checkpoint

from mcp_rollout.gateway.types import ToolDefinition

_TEXTS_AT_ONCE = 2000
"""Texts of tool definitions that are looked through before other tasks get their turn."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HiddenText:
    """One run of hidden characters."""

    where: str
    """The place of the text: `tool read: description`, `tool read: input_schema.properties.path.description`, ..."""
    index: int
    """Start of the run in the text, in code points."""
    code_points: tuple[int, ...]
    """Empty if the text from here on is not examined."""
    of: str | None = None
    """The tool's own name; None if the text is not a tool's."""

    @property
    def decoded(self) -> str:
        """The ASCII text that tag characters or variation selectors encode; empty for others."""
        return "".join(filter(str.isprintable, map(_spelt, self.code_points)))

    def __str__(self) -> str:
        if not self.code_points:
            return f"{self.where}: more than is examined, from {self.index} on"
        shown = " ".join(f"U+{point:04X}" for point in self.code_points[:_MAX_SHOWN])
        more = len(self.code_points) - _MAX_SHOWN
        text = f"{self.where}: hidden characters at {self.index}: {shown}" + (f" and {more} more" if more > 0 else "")
        return text + (f", which spell {self.decoded[:200]!r}" if self.decoded else "")


_MAX_SHOWN = 8
_SELECTORS = "\u180b-\u180d\u180f\ufe00-\ufe0f\U000e0100-\U000e01ef"
_HIDDEN = (
    # Unicode's control, format, private use and surrogate characters (Cc, Cf, Co, Cs), but for line ends and tabs,
    "\\x00-\\x08\\x0b\\x0c\\x0e-\\x1f\\x7f-\\x9f\\xad\\u0600-\\u0605\\u061c\\u06dd\\u070f\\u0890\\u0891\\u08e2\\u180e"
    "\\u200b-\\u200f\\u202a-\\u202e\\u2060-\\u2064\\u2066-\\u206f\\ud800-\\uf8ff\\ufeff\\ufff9-\\ufffb\\U000110bd\\U000110cd"
    "\\U00013430-\\U0001343f\\U0001bca0-\\U0001bca3\\U0001d173-\\U0001d17a\\U000f0000-\\U0010ffff"
    # unassigned ones without a glyph, tags and selectors, and letters, marks and symbols that are blank.
    f"\\u2065\\ufff0-\\ufff8\\U000e0000-\\U000e0fff{_SELECTORS}\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0"
)
_RUN = re.compile(f"[{_HIDDEN}]+")
_RUN_OR_RETURN = re.compile(f"[{_HIDDEN}]+|\r(?!\n)")
_SELECTOR = re.compile(f"[{_SELECTORS}]")
_FLAG = re.compile("\U0001f3f4[\U000e0061-\U000e007a]{2}[\U000e0030-\U000e0039\U000e0061-\U000e007a]{1,3}\U000e007f")
_RUN_CHARACTERS = 10
"""Characters whose examination takes as long as the rest of that of a run."""


@dataclass(slots=True)
class Budget:
    """How much of a server's texts may still be examined; text without hidden characters costs nothing."""

    characters: int = 150_000
    findings: int = 1000


def find_hidden(text: str, where: str, budget: Budget | None = None, *, of: str | None = None) -> list[HiddenText]:
    """All runs of hidden characters in `text`, in order; the rest beyond the budget is one finding.

    Args:
        of: The tool that the text belongs to.
    """
    budget = budget or Budget()
    findings: list[HiddenText] = []
    for run in _RUN.finditer(text):
        start, end = run.span()
        budget.characters -= end - start + _RUN_CHARACTERS
        if budget.characters < 0 or not budget.findings:
            findings.append(HiddenText(where=where, index=start, code_points=(), of=of))
            break
        if not _is_ordinary(text, start, end):
            budget.findings -= 1
            points = tuple(map(ord, run.group()))
            findings.append(HiddenText(where=where, index=start, code_points=points, of=of))
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
        if not found.code_points:
            return "".join([*parts, f"<{len(text) - found.index} characters more>"])
        parts += [f"<U+{point:04X}>" for point in found.code_points]
        done = found.index + len(found.code_points)
    return "".join([*parts, text[done:]])


def visible(text: str, form: Callable[[int], str] = "<U+{:04X}>".format) -> str:
    """All of `text`, with its hidden characters and lone carriage returns spelled out: for a terminal, a log, a report.

    Args:
        form: What stands for a code point.
    """

    def spelled(run: re.Match[str]) -> str:
        return run.group() if _is_ordinary(text, *run.span()) else "".join(map(form, map(ord, run.group())))

    return _RUN_OR_RETURN.sub(spelled, text)


def _is_ordinary(text: str, start: int, end: int) -> bool:
    """Whether a run is part of ordinary writing."""
    flag = _FLAG.match(text, max(0, start - 1))
    return (flag is not None and flag.end() == end) or all(_is_usual(text, index) for index in range(start, end))


def _is_usual(text: str, index: int) -> bool:
    here, before, after = text[index], text[index - 1 : index], text[index + 1 : index + 2]
    if not before:
        return False
    if here in "\u200c\u200d":
        return bool(after) and ((_is_pictured(before) and _is_pictured(after)) or _needs_joiners(before))
    if _SELECTOR.match(here):
        return _can_vary(before, ord(here))
    return "\u0600" <= here <= "\u08e2" and here != "\u061c"  # Arabic number signs and similar ones, which have a glyph


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
