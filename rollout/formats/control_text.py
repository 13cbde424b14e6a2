"""Keep text text: no control id comes from the text of a message or of a tool's definition.

A tokenizer finds the spelling of a control token (`<|im_end|>`) in a rendered conversation, no matter who wrote it.
Here the texts are marked before the template renders them: `BREAK` goes into each spelling, and to the ends of a text
that could become a part of one beside the template's own text. After rendering, the text is cut at each break that
lies in a spelling, and its parts are tokenised alone. All other breaks are dropped, so that other texts keep their
ids.

For a renderer that is out of reach, such as a chat API's, `Spellings.broken` changes the texts instead.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, cast

from mcp_rollout.mcp_wire.control_text import SPELLING
from mcp_rollout.rollout.types import Message

BREAK = "\udc80"
"""Half of a surrogate pair: no text that can be tokenised contains one, so it cannot be a text's own."""
ESCAPED = r"\udc80"
"""A break where a template writes Python's `repr`, or JSON of ASCII alone."""

_ESCAPED = re.compile(re.escape(ESCAPED))
_NOT_TEXT = frozenset(("role", "type", "image", "image_url", "video", "audio"))
_KEYWORDS = frozenset(
    ("type", "properties", "required", "items", "enum", "description", "title", "default", "format", "const")
)
"""Keys of schemas that templates look up."""


class Spellings:
    """Control tokens as they are spelled in texts.

    Args:
        begins: matches the first character of each.
    """

    def __init__(self, begins: re.Pattern[str]) -> None:
        self._begins = begins

    def count(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> int:
        """Number of spellings in the texts of messages and of tools' definitions."""
        texts: list[str] = []

        def collect(text: str) -> str:
            texts.append(text)
            return text

        _changed(messages, tools, collect)
        # One search in all of them costs less than one in each; no spelling has what stands between them.
        return len(self._begins.findall("\0".join(texts)))

    def broken(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]
    ) -> tuple[list[Message], list[dict[str, Any]]]:
        """Copies whose texts have a space in each spelling, for a renderer that finds spellings in any text."""
        return _changed(messages, tools, partial(self._begins.sub, r"\g<0> "))


class ControlText(Spellings):
    """The spellings of one tokenizer's control tokens and one format's markers.

    Args:
        spellings: each of two characters or more.
    """

    def __init__(self, spellings: Collection[str]) -> None:
        self.spellings = frozenset(spellings)
        # Of what begins at a place the shortest is enough to break all, and the longest to find all that a break is in.
        # The first character stands before its condition, so that a search skips all others.
        begins = [f"{re.escape(first)}(?={_pattern(rest, longest=False)})" for first, rest in _tails(self.spellings)]
        super().__init__(re.compile("|".join(begins) or "(?!)"))
        self._spans = re.compile(f"(?=({_pattern(self.spellings, longest=True)}))")
        self._longest = max(map(len, spellings), default=0)
        self._prefixes = {each[:size] for each in spellings for size in range(1, len(each))}
        self._suffixes = {each[size:] for each in spellings for size in range(1, len(each))}
        # What most texts do not begin with, or have near their end, so that they are done soon.
        self._openings, self._firsts = {each[:2] for each in self._suffixes}, {each[0] for each in self.spellings}
        self._by_core: dict[str, list[str]] = {}
        for each in self.spellings:
            self._by_core.setdefault(_core(each), []).append(each)

    def marked(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]
    ) -> tuple[list[Message], list[dict[str, Any]]]:
        """Copies whose texts have breaks where they need some."""
        return _changed(messages, tools, self.mark)

    def parts(self, rendered: str) -> list[str]:
        """A rendered text without its breaks, cut at those that lie in a spelling."""
        between = rendered.replace(ESCAPED, BREAK).split(BREAK)
        text, places = "".join(between), list(accumulate(map(len, between)))[:-1]
        cuts = {
            place
            for found in self._spans.finditer(text)
            for place in places[bisect_right(places, found.start(1)) : bisect_left(places, found.end(1))]
        }
        return [text[start:end] for start, end in pairwise([0, *sorted(cuts), len(text)])]

    def mark(self, text: str) -> str:
        """The text with breaks where it needs some."""
        cuts = {found.end() for found in self._begins.finditer(text)}
        cuts |= {found.start() + 1 for found in _ESCAPED.finditer(text)}  # which is the text's own
        # Templates strip texts, so the ends are those of the text without surrounding whitespace.
        inner, start = text.strip(), len(text) - len(text.lstrip())
        sizes = range(1, min(len(inner), self._longest) + 1)
        opens = inner[:2] in self._openings or inner[:1] in self._openings
        if opens and any(inner[:size] in self._suffixes for size in sizes):
            cuts.add(start)
        # Templates may write the brackets around a name, as in `<NAME>`.
        is_enclosed = inner and any(inner in each for each in self._by_core.get(_core(inner), ()))
        tail = inner[-self._longest :]
        if is_enclosed or (
            not self._firsts.isdisjoint(tail) and any(inner[-size:] in self._prefixes for size in sizes)
        ):
            cuts.add(start + len(inner))
        return BREAK.join(text[begin:end] for begin, end in pairwise([0, *sorted(cuts), len(text)])) if cuts else text


def is_marked(rendered: str) -> bool:
    """Whether a rendered text has breaks."""
    return BREAK in rendered or ESCAPED in rendered


def _pattern(words: Collection[str], *, longest: bool) -> str:
    """A pattern of a tree's shape, so that its cost does not grow with the number of words."""
    if "" in words and not (longest and len(words) > 1):
        return ""
    branches = [re.escape(first) + _pattern(rest, longest=longest) for first, rest in _tails(words)]
    return f"(?:{'|'.join(branches) or '(?!)'}){'?' if '' in words else ''}"


def _tails(words: Collection[str]) -> Iterable[tuple[str, set[str]]]:
    """By their first character, what is left of words."""
    following: dict[str, set[str]] = {}
    for word in filter(None, words):
        following.setdefault(word[0], set()).add(word[1:])
    return following.items()


def _core(text: str) -> str:
    """A spelling without its brackets."""
    return text.strip("<>|/[]{}\uff5c")


def _changed(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], change: Callable[[str], str]
) -> tuple[list[Message], list[dict[str, Any]]]:
    return [_record(each, change) for each in messages], [_record(each, change) for each in tools]


def _record(record: Mapping[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    """A message, block, call or tool, whose own keys stay as they are."""
    changed = dict(record)
    for key in changed.keys() - _NOT_TEXT:
        value = changed[key]
        if key == "function":
            changed[key] = _record(value, change)
        elif key in ("content", "tool_calls") and isinstance(value, list):
            changed[key] = [_record(each, change) for each in cast("list[dict[str, Any]]", value)]
        else:
            changed[key] = _value(value, change)
    return changed


def _value(value: Any, change: Callable[[str], str]) -> Any:
    """A text, or values of JSON with the texts in them, keys included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, (list, tuple)):
        return [_value(each, change) for each in cast("Sequence[Any]", value)]
    # `dict` first: this runs for each value of a conversation, and `Mapping` alone is slow to ask about.
    if isinstance(value, (dict, Mapping)):
        entries = cast("Mapping[str, Any]", value).items()
        return {key if key in _KEYWORDS else change(key): _value(each, change) for key, each in entries}
    return value


NO_CONTROL = ControlText(())
KNOWN = Spellings(SPELLING)
"""Control tokens of every format and of common chat templates, for policies whose tokenizer is out of reach."""
