"""Base classes of formats: of all, and of those with markers around thoughts and calls (all but gpt-oss)."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mcp_rollout.rollout.types import Call, ThoughtMarkers

Tools = Sequence[Mapping[str, Any]]
"""OpenAI-style tool schemas, as offered to the policy."""

MAX_QUOTED = 80
"""Most characters of a policy's own text that a problem quotes."""


@dataclass(kw_only=True, slots=True)
class ParsedText:
    """A completion's text, split. Nothing is dropped: text that is neither a thought nor a call is content."""

    content: str = ""
    calls: list[Call] = field(default_factory=list[Call])
    """In the order in which they were written; an unreadable call has a `problem`."""
    thoughts: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """`[begin, end)` of each thought in the text, its markers included; a leading one begins with the text."""
    in_thought: bool = False
    """Whether the text ends within its last thought."""
    thought_texts: list[str] = field(default_factory=list[str])

    @property
    def thinking(self) -> str:
        return "\n".join(filter(None, self.thought_texts))

    def add_thought(self, thought: str, begin: int, end: int, *, is_open: bool) -> None:
        self.thought_texts.append(thought)
        self.thoughts.append((begin, end))
        self.in_thought = is_open


@dataclass(frozen=True, kw_only=True, slots=True)
class Format(ABC):
    """One way of writing a completion. A format knows text only; token ids are the business of `rollout.tokens`."""

    name: str
    """As in verl's `rollout.multi_turn.format`."""
    call_syntax: str
    """How to write a call, in the imperative; every `problem` ends with it."""
    end_tokens: tuple[str, ...]
    """Tokens with which a policy ends its turn; not part of the completion's text."""
    truncated_end: tuple[str | None, str | None]
    """The token to insert after a completion without its end: before a tool result, and before a user message."""
    stop_tokens: tuple[str, ...] = ()
    """Tokens after which generation has to stop, in addition to those of verl's own parser."""
    more_markers: tuple[str, ...] = ()
    """Markers that no other field has."""

    @property
    def markers(self) -> frozenset[str]:
        """All fixed texts with which the format marks structure."""
        ends = (*self.end_tokens, *self.stop_tokens, *filter(None, self.truncated_end))
        return frozenset((*ends, *self.more_markers))

    @property
    @abstractmethod
    def thought(self) -> ThoughtMarkers | None:
        """The markers around a thought; None if a thought is a separate message."""

    @abstractmethod
    def opens_thought(self, prompt: str) -> bool:
        """Whether a prompt with this end has begun a thought, so that the completion begins inside it."""

    @abstractmethod
    def read(self, text: str, tools: Tools, *, opened: bool = False) -> ParsedText:
        """Split a completion's text, its end token removed.

        Args:
            tools: schemas that give the parameters their types, in formats that write values without quotes.
            opened: whether the prompt has begun a thought.
        """

    def unreadable(self, problem: str, *, name: str = "", id: str | None = None) -> Call:
        """A call that is not sent: the policy reads the problem, and how to write a call."""
        return Call(name=name, id=id, problem=f"{problem}; {self.call_syntax}.")


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockFormat(Format):
    """A format of `think` blocks, `call` blocks and text between them.

    The text is scanned once, front to back: a marker inside a thought belongs to the thought, one inside a call to the
    call. A policy can repeat one marker until its turn is full, so every step has to be linear in the text.
    """

    think: tuple[str, str] = ("<think>", "</think>")
    call: tuple[str, str] = ("<tool_call>", "</tool_call>")
    inner_marker: str | None = None
    """A marker that belongs inside a call block; outside of one it is a broken call."""
    around_think_end: tuple[str, str] = ("\n", "\n\n")
    """What a template writes before and after the marker that ends a thought."""
    call_end_optional: bool = False
    """Whether the last call block may lack its end marker if its content is complete."""

    @abstractmethod
    def read_block(self, body: str, tools: Tools) -> list[Call]:
        """The calls in one block; an unreadable block is one call with a `problem`."""

    @property
    def markers(self) -> frozenset[str]:
        inner = [] if self.inner_marker is None else [self.inner_marker]
        # Without arguments `super` does not find the class that `slots` has replaced.
        return super(BlockFormat, self).markers | {*self.think, *self.call, *inner}

    @property
    def thought(self) -> ThoughtMarkers | None:
        before, after = self.around_think_end
        opening, ending = self.think
        return ThoughtMarkers(opening=opening, ending=ending, closing=before + ending + after)

    def opens_thought(self, prompt: str) -> bool:
        return prompt.rstrip().endswith(self.think[0].rstrip())

    def read(self, text: str, tools: Tools, *, opened: bool = False) -> ParsedText:
        parsed, content = ParsedText(), list[str]()
        position = self._leading_thought(text, opened)
        if position:
            is_open = not text[:position].endswith(self.think[1])
            thought = text[:position].removesuffix(self.think[1]).replace(self.think[0], "", 1)
            parsed.add_thought(thought.strip("\n"), 0, position, is_open=is_open)
        ahead = {pair: text.find(pair[0], position) for pair in (self.think, self.call)}
        indent = len(text) - len(text.lstrip())
        while (found := _next(text, position, ahead)) is not None:
            start, (opening, ending) = found
            content.append(text[position:start])
            inside = start + len(opening)
            end = text.find(ending, inside)
            position = len(text) if end < 0 else end + len(ending)
            body = _without_partial(text[inside:], ending) if end < 0 else text[inside:end]
            if opening == self.think[0]:
                begin = start if start > indent else 0
                parsed.add_thought(body.strip("\n"), begin, position, is_open=end < 0)
            else:
                parsed.calls += self._block(body, tools, whole=end >= 0)
        parsed.content = "".join([*content, text[position:]]).strip()
        if self.inner_marker is not None and self.inner_marker in parsed.content:
            parsed.calls.append(self.unreadable(f"{self.inner_marker} is outside a tool call"))
        if not parsed.content and not parsed.calls and self.call[0] in parsed.thinking:
            problem = f"The tool call is inside a thought; end the thought with {self.think[1]}, then call."
            parsed.calls.append(Call(name="", problem=problem))
        return parsed

    def _leading_thought(self, text: str, opened: bool) -> int:
        """Where a thought ends whose beginning is not in the text: in the prompt, or nowhere."""
        opening, ending = self.think
        end = text.find(ending)
        if opened:
            return len(text) if end < 0 else end + len(ending)
        if end < 0:
            return 0
        before = text[:end]
        return 0 if opening in before or self.call[0] in before else end + len(ending)

    def _block(self, body: str, tools: Tools, *, whole: bool) -> list[Call]:
        calls = self.read_block(body, tools)
        if whole or (self.call_end_optional and calls):
            return calls
        # The arguments of a truncated call are not what the policy meant; the name still shows which call it was.
        broken = self.unreadable(f"The tool call has no {self.call[1]}")
        return [replace(call, arguments={}, problem=broken.problem) for call in calls] or [broken]


def _next(text: str, position: int, ahead: dict[tuple[str, str], int]) -> tuple[int, tuple[str, str]] | None:
    """The position and the markers of the next block.

    Args:
        ahead: where the opening marker of each pair was last found, so that nothing is searched for it twice.
    """
    for pair, start in ahead.items():
        if 0 <= start < position:
            ahead[pair] = text.find(pair[0], position)
    return min(((start, pair) for pair, start in ahead.items() if start >= 0), default=None)


def _without_partial(text: str, marker: str) -> str:
    """A truncated text without the beginning of `marker` at its end."""
    written = next((size for size in range(len(marker) - 1, 0, -1) if text.endswith(marker[:size])), 0)
    return text[: len(text) - written]


def quoted(text: str) -> str:
    """A piece of a policy's text, shortened for a problem."""
    text = re.sub(r"\s+", " ", text).strip()
    return repr(text if len(text) <= MAX_QUOTED else text[:MAX_QUOTED] + "...")
