"""Formats that put thoughts and calls between markers: everything but gpt-oss."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from rollout.formats.reading import Reading, Tools
from rollout.types import Call, ThoughtMarkers

ReadBlock = Callable[[str, Tools], list[Call]]
"""The calls in the text of one block; a block that says nothing legible is one call with a `problem`."""

QUOTED = 80
"""Most characters of a policy's own text that a problem quotes back to it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockFormat:
    """A format of `think` blocks, `call` blocks and text between them.

    The text is walked once, from the front: a marker inside a thought is thought, one inside a call is the call's.
    """

    name: str
    think: tuple[str, str]
    call: tuple[str, str]
    read_block: ReadBlock
    shape: str
    """What a call looks like, to finish a sentence that says what was wrong."""
    ends: tuple[str, ...]
    closing: tuple[str | None, str | None]
    stops: tuple[str, ...] = ()
    strays: tuple[str, ...] = ()
    """Markers that mean a call, and are none outside a block."""
    around_ending: tuple[str, str] = ("\n", "\n\n")
    """What a template writes before and behind the marker that ends a thought."""
    ends_optional: bool = False
    """Whether a block's last closing marker may be missing, where all in it is whole."""

    @property
    def thought(self) -> ThoughtMarkers | None:
        before, behind = self.around_ending
        opening, ending = self.think
        return ThoughtMarkers(opening=opening, ending=ending, closing=before + ending + behind)

    def opens(self, prompt: str) -> bool:
        return prompt.rstrip().endswith(self.think[0].rstrip())

    def read(self, text: str, tools: Tools, *, opened: bool = False) -> Reading:
        thoughts: list[str] = []
        said: list[str] = []
        calls: list[Call] = []
        places: list[tuple[int, int]] = []
        in_thought = False
        position = self._leading_thought(text, opened)
        if position:
            thoughts.append(_between(text[:position], *self.think))
            places.append((0, position))
            in_thought = not text[:position].endswith(self.think[1])
        while (found := self._next(text, position)) is not None:
            start, (opening, ending) = found
            said.append(text[position:start])
            inside = start + len(opening)
            end = text.find(ending, inside)
            position = len(text) if end < 0 else end + len(ending)
            body = _without_half(text[inside:], ending) if end < 0 else text[inside:end]
            if opening == self.think[0]:
                thoughts.append(body.strip("\n"))
                places.append((start if text[:start].strip() else 0, position))
                in_thought = end < 0
            else:
                calls += self._block(body, tools, whole=end >= 0)
        said.append(text[position:])
        content = "".join(said).strip()
        calls += self._strays(content)
        calls += self._thought_only(thoughts, content, calls)
        return Reading(
            thinking="\n".join(filter(None, thoughts)),
            content=content,
            calls=tuple(calls),
            thoughts=tuple(places),
            in_thought=in_thought,
        )

    def _leading_thought(self, text: str, opened: bool) -> int:
        """Where a thought ends that the text begins inside of: the prompt began it, or nobody wrote its beginning."""
        opening, ending = self.think
        end = text.find(ending)
        if opened:
            return len(text) if end < 0 else end + len(ending)
        if end < 0:
            return 0
        before = text[:end]
        return 0 if opening in before or self.call[0] in before else end + len(ending)

    def _next(self, text: str, position: int) -> tuple[int, tuple[str, str]] | None:
        """The marker that opens the next block, and where it stands."""
        found = [(text.find(pair[0], position), pair) for pair in (self.think, self.call)]
        return min((place for place in found if place[0] >= 0), default=None)

    def _block(self, body: str, tools: Tools, *, whole: bool) -> list[Call]:
        calls = self.read_block(body, tools)
        if whole or (self.ends_optional and calls):
            return calls
        # What was read of half a call is not what was meant; its name says which call it was.
        problem = f"The tool call has no {self.call[1]}; {self.shape}."
        return [replace(call, arguments={}, problem=problem) for call in calls] or [Call(name="", problem=problem)]

    def _strays(self, content: str) -> list[Call]:
        stray = next((marker for marker in self.strays if marker in content), None)
        return [] if stray is None else [Call(name="", problem=f"{stray} stands outside a tool call; {self.shape}.")]

    def _thought_only(self, thoughts: list[str], content: str, calls: list[Call]) -> list[Call]:
        """A policy that wrote a call inside its thought, and nothing after it, learns why nothing was called."""
        if content or calls or not any(self.call[0] in thought for thought in thoughts):
            return []
        problem = f"The tool call stands inside a thought; end the thought with {self.think[1]}, then call."
        return [Call(name="", problem=problem)]


def _between(text: str, opening: str, ending: str) -> str:
    return text.removesuffix(ending).replace(opening, "", 1).strip("\n")


def _without_half(text: str, marker: str) -> str:
    """A text that was cut, without the part of the marker that was written already."""
    written = next((size for size in range(len(marker) - 1, 0, -1) if text.endswith(marker[:size])), 0)
    return text[: len(text) - written]


def quoted(text: str) -> str:
    """A piece of a policy's text, short enough to be put into a problem."""
    text = re.sub(r"\s+", " ", text).strip()
    return repr(text if len(text) <= QUOTED else text[:QUOTED] + "...")
