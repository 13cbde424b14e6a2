"""What a completion's text says, and what every tool format can do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rollout.types import Call, ThoughtMarkers

Tools = Sequence[Mapping[str, Any]]
"""OpenAI-style tool schemas, as the policy was offered them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """A completion's text, taken apart. Nothing is left out: what is no thought and no call is content."""

    thinking: str
    content: str
    calls: tuple[Call, ...]
    """In the order in which they were written; what cannot be read is a call with a `problem`."""
    thoughts: tuple[tuple[int, int], ...] = ()
    """`[begin, end)` of each thought in the text, its markers included; a leading one begins with the text."""
    in_thought: bool = False
    """Whether the text ends within its last thought."""


class Format(Protocol):
    """One way of writing a completion. A format knows text only; tokens are `rollout.tokens.verl_builder`'s."""

    @property
    def name(self) -> str:
        """As in verl's `rollout.multi_turn.format`."""
        ...

    @property
    def ends(self) -> tuple[str, ...]:
        """Tokens with which a policy ends its turn; no part of what it said."""
        ...

    @property
    def stops(self) -> tuple[str, ...]:
        """Tokens after which generation has to stop, beside those that verl's own parser names."""
        ...

    @property
    def thought(self) -> ThoughtMarkers | None:
        """Between which markers a policy thinks; None where a thought is a message of its own."""
        ...

    @property
    def closing(self) -> tuple[str | None, str | None]:
        """The token that a turn cut in mid-sentence lacks before a tool's answer, and before a user's message."""
        ...

    def opens(self, prompt: str) -> bool:
        """Whether this end of a prompt has begun a thought, so that the completion begins inside it."""
        ...

    def read(self, text: str, tools: Tools, *, opened: bool = False) -> Reading:
        """Take a completion's text apart, the token that ended it removed.

        Args:
            opened: whether the prompt has begun the thought.
        """
        ...
