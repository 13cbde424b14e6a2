"""What the rollout layers pass to each other: messages, completions, calls, and the two seams of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

Message = dict[str, Any]
"""An OpenAI-style chat message: `role`, `content`, and `tool_calls` where the assistant made some."""


class FinishReason(StrEnum):
    """Why the engine stopped sampling."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """One policy generation, token ids exactly as sampled."""

    ids: list[int]
    logprobs: list[float] | None = None
    """Log-probability of each sampled id under the distribution it was drawn from.  # [len(ids)]"""
    finish_reason: FinishReason = FinishReason.STOP
    weights_version: tuple[int | None, int | None] = (None, None)
    """Trainer step of the weights at the first and at the last sampled token."""
    forced: tuple[int, int] | None = None
    """`[begin, end)` of the ids that nobody sampled: the marker with which the thinking budget closed the thought."""
    generations: int = 1
    """How often the engine was asked for it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One tool call that the policy wrote. `problem` says why it could not be read; then it is never sent."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    id: str | None = None
    problem: str | None = None
    as_text: str | None = None
    """The arguments as they were written, where that was JSON text and no object: the gateway reads it, and says so."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Parsed:
    """A completion as text: what was thought, what was said, what was called."""

    content: str
    thinking: str = ""
    thoughts: tuple[tuple[int, int], ...] = ()
    """`[begin, end)` of the completion's ids, one for each thought, its markers included; in order and apart."""
    in_thought: bool = False
    """Whether the completion ends within its last thought."""
    calls: tuple[Call, ...] = ()

    @property
    def thinking_tokens(self) -> int:
        """Of all thoughts together."""
        return sum(end - begin for begin, end in self.thoughts)


@dataclass(frozen=True, kw_only=True, slots=True)
class ThoughtMarkers:
    """How a policy's thoughts are told from the rest."""

    opening: str
    ending: str
    closing: str
    """What a thought is ended with for the policy: the ending marker with the space that a template puts around it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """What the policy is shown of one tool result."""

    text: str
    cut_tokens: int = 0
    """How many tokens of the text were cut out, to leave this."""
    images: tuple[str, ...] = ()
    """As data urls."""

    @property
    def content(self) -> str | list[dict[str, Any]]:
        """The content of a chat message."""
        if not self.images:
            return self.text
        blocks: list[dict[str, Any]] = [{"type": "image", "image": image} for image in self.images]
        return blocks + ([{"type": "text", "text": self.text}] if self.text else [])


@dataclass(frozen=True, kw_only=True, slots=True)
class Edit:
    """How the context changes: drop `removed` ids from its end, then append `inserted` and `appended`.

    `inserted` are boundary tokens that a template wants between two spans; nobody sampled them.
    """

    appended: list[int]
    inserted: list[int] = field(default_factory=list[int])
    removed: int = 0
    images: int = 0
    """How many images of the messages are among `appended`."""

    def applied_to(self, context: list[int]) -> list[int]:
        """The changed context, a new list."""
        return [*context[: len(context) - self.removed], *self.inserted, *self.appended]


class Policy(Protocol):
    """Token-in-token-out access to a model, for one trajectory."""

    async def generate(self, ids: list[int], *, max_tokens: int, turn: int) -> Completion:
        """Continue `ids` by at most `max_tokens` tokens; `turn` counts from 0 within the trajectory.

        The same turn is asked for again where its thinking budget was reached; `ids` then ends in what the turn has.
        """
        ...


class TokenBuilder(Protocol):
    """The one bridge between messages and token ids; it never re-tokenises what is already in the context."""

    @property
    def thought(self) -> ThoughtMarkers | None:
        """Between which markers the policy thinks; None where its thoughts are messages of their own."""
        ...

    def prompt(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[int]:
        """Ids of the opening messages, ready for the first generation."""
        ...

    def completion(self, context: list[int], sampled: list[int]) -> Edit:
        """How sampled ids join the context."""
        ...

    def messages(
        self,
        context: list[int],
        previous: Sequence[Message],
        new: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
    ) -> Edit:
        """How tool or user messages join the context, ready for the next generation."""
        ...

    def sees(self, image: bytes) -> bool:
        """Whether the policy can be shown this image."""
        ...

    def encode(self, text: str) -> list[int]:
        """Ids of a text by itself, for measuring and cutting it."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids."""
        ...

    async def parse(self, sampled: list[int], tools: Sequence[Mapping[str, Any]]) -> Parsed:
        """Read a completion. Whatever cannot be read comes back as content or as a `Call` with a `problem`."""
        ...
