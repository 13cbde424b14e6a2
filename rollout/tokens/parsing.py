"""Read a completion's ids: its text by the format, and the ids that spell each thought."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mcp_rollout.rollout.errors import EngineError
from mcp_rollout.rollout.formats.format import Format, Tools
from mcp_rollout.rollout.types import MOST_CALLS, Call, Parsed

Range = tuple[int, int]
"""`[begin, end)`."""
MOST_THOUGHTS = 32
"""Thoughts of a turn whose ids are found one by one, which takes a decode of the turn each; those after them, with what
is between them, count as one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CompletionParser:
    """Splits completions of one format and tokenizer into thoughts, content and calls."""

    format: Format
    decode: Callable[[Sequence[int]], str]
    token_of: Callable[[str], int | None]
    """The single token for a marker; None if there is none."""

    def parse(self, ids: Sequence[int], tools: Tools, *, opened: bool = False) -> Parsed:
        """Parse a completion.

        Args:
            ids: the completion without the token that ended it.
            opened: whether the prompt has begun a thought.

        Raises:
            EngineError: ids are none of the tokenizer's, which only an engine can cause.
        """
        try:
            text = self.decode(ids)
        except (IndexError, OverflowError, ValueError) as error:
            raise EngineError(f"the engine gave ids that are none of its tokenizer's: {error}") from error
        read = self.format.read(text, tools, opened=opened)
        calls = read.calls
        if (more := len(calls) - MOST_CALLS) > 0:
            problem = f"{more:,} further calls were not read: at most {MOST_CALLS:,} of a turn are."
            calls = [*calls[:MOST_CALLS], Call(name="", problem=problem)]
        return Parsed(
            content=read.content,
            thinking=read.thinking,
            thoughts=self._token_ranges(ids, text, read.thoughts),
            in_thought=read.in_thought,
            calls=tuple(calls),
        )

    def _token_ranges(self, ids: Sequence[int], text: str, ranges: Sequence[Range]) -> tuple[Range, ...]:
        """The ids that spell these ranges of `text`, which is what all of `ids` decode to.

        A token that spells a part of a range belongs to it; one that spells a part of two belongs to the first.
        Decoding finds how a marker is spelled, with one token or several, alone or merged with its neighbours: about
        one decode per range where the marker is a single token, else as many as a binary search takes.

        Args:
            ranges: characters, in order and disjoint. Each begins at a marker or at 0, and ends at one or at the end.
        """
        if len(ranges) > MOST_THOUGHTS:
            ranges = [*ranges[: MOST_THOUGHTS - 1], (ranges[MOST_THOUGHTS - 1][0], ranges[-1][1])]
        found: list[Range] = []
        done = 0
        for start, end in ranges:
            begin = 0
            if start:
                marker = self.token_of(text[start : text.find(">", start) + 1])
                at = _index(ids, marker, done)
                # The next such token can be a later one, where this marker is spelled with several.
                if at is None or self.decode(ids[:at]) != text[:start]:
                    at = self._spelling(ids, text[: start + 1]) - 1
                begin = max(done, at)
            stop = len(ids)
            if end < len(text):
                marker = self.token_of(text[text.rfind("<", start, end) : end])
                at = _index(ids, marker, begin)
                if at is None or self.decode(ids[: at + 1]) != text[:end]:
                    at = self._spelling(ids, text[:end]) - 1
                stop = at + 1
            found.append((begin, stop))
            done = stop
        return tuple(found)

    def _spelling(self, ids: Sequence[int], text: str) -> int:
        """How many ids spell the beginning `text`, which ends in a whole character."""
        return bisect_left(range(len(ids)), True, key=lambda count: self.decode(ids[:count]).startswith(text))


def _index(ids: Sequence[int], token: int | None, start: int) -> int | None:
    """The token's next position."""
    return next((at for at in range(start, len(ids)) if ids[at] == token), None) if token is not None else None
