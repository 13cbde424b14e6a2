"""Types that the rollout layers share: messages, completions, calls; what policies, tokens and sessions have to be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from mcp_rollout.gateway.server_events import ServerEvents
from mcp_rollout.gateway.types import Role, ToolDefinition, ToolResult

Message = dict[str, Any]
"""An OpenAI-style chat message: `role`, `content`, and `tool_calls` where the assistant made some."""


class FinishReason(StrEnum):
    """Why the engine stopped sampling."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """A part of a generation, sampled by one version of the weights: new weights interrupt, and the next resumes."""

    tokens: int
    weights_version: int | None
    seed: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """One generation of the policy, with the token ids exactly as sampled."""

    ids: list[int]
    logprobs: list[float] | None = None
    """Log-probability of each id under the distribution it was sampled from.  # [len(ids)]"""
    finish_reason: FinishReason = FinishReason.STOP
    weights_version: tuple[int | None, int | None] = (None, None)
    """Trainer steps of the weights that sampled the first and the last token."""
    forced: tuple[int, int] | None = None
    """`[begin, end)` of the ids that were not sampled: the marker with which the thinking budget closed the thought."""
    generations: int = 1
    """Number of engine requests."""
    request_ids: tuple[str, ...] = ()
    """The engine's ids of the requests, where they are known."""
    seeds: tuple[int, ...] = ()
    """The sampling seed of each request, where requests have one."""
    attempts: tuple[Attempt, ...] = ()
    """The attempts in which the ids were sampled, in order, as far as the engine's client knows them."""


MOST_CALLS = 1024
"""Calls of a turn that are read one by one, each with its result; those after them count as one unreadable call."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One tool call that the policy wrote. An unreadable call has a `problem` and is never sent."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    id: str | None = None
    problem: str | None = None
    as_text: str | None = None
    """The arguments as written, where they are a JSON string instead of an object; the gateway parses them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Parsed:
    """A completion as text: content, thinking and calls."""

    content: str
    thinking: str = ""
    thoughts: tuple[tuple[int, int], ...] = ()
    """`[begin, end)` in the completion's ids of each thought with its markers; in order, without overlap."""
    in_thought: bool = False
    """Whether the completion ends inside its last thought."""
    calls: tuple[Call, ...] = ()

    @property
    def thinking_tokens(self) -> int:
        """Tokens of all thoughts, with their markers."""
        return sum(end - begin for begin, end in self.thoughts)


@dataclass(frozen=True, kw_only=True, slots=True)
class ThoughtMarkers:
    """The texts that delimit a policy's thoughts."""

    opening: str
    ending: str
    closing: str
    """Text that closes a thought over budget: the ending marker with the whitespace of the template around it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """The part of a tool result that the policy reads."""

    text: str
    cut_tokens: int = 0
    """Number of tokens that were cut from the text."""
    images: tuple[str, ...] = ()
    """Images as data URLs."""

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

    `inserted` are boundary tokens that the template puts between two spans; they are not sampled.
    """

    appended: list[int]
    inserted: list[int] = field(default_factory=list[int])
    removed: int = 0
    images: int = 0
    """Number of the messages' images in `appended`."""

    def applied_to(self, context: list[int]) -> list[int]:
        """The changed context, a new list."""
        return [*context[: len(context) - self.removed], *self.inserted, *self.appended]


class Policy(Protocol):
    """Token-in-token-out access to a model, for one trajectory."""

    async def generate(self, ids: list[int], *, max_tokens: int, turn: int) -> Completion:
        """Continue `ids` by at most `max_tokens` tokens; `turn` counts from 0 within the trajectory.

        A turn that reached its thinking budget is continued by a second call, whose `ids` end with the turn so far.

        Args:
            ids: the trajectory's own list, since a copy would be a good part of what a long turn costs. A policy copies
                the ids that it keeps or changes; one that changes the list fails the trajectory.
        """
        ...


class TokenBuilder(Protocol):
    """Converts between messages and token ids. It never tokenises again what is already in the context."""

    @property
    def thought(self) -> ThoughtMarkers | None:
        """The markers of the policy's thoughts; None if thoughts are separate messages."""
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
        """Ids of what a policy writes, by itself; markers are recognised."""
        ...

    def encode_text(self, text: str) -> list[int]:
        """Ids of a message's text by itself, for measuring and cutting it; none is a marker's."""
        ...

    def control_text(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> int:
        """Number of spellings of control tokens in the texts of messages and of tools' definitions."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids."""
        ...

    async def parse(self, sampled: list[int], tools: Sequence[Mapping[str, Any]]) -> Parsed:
        """Parse a completion. Text that cannot be parsed is returned as content or as a `Call` with a `problem`.

        Raises:
            EngineError: ids are none of the tokenizer's.
        """
        ...


class ModelTokens(TokenBuilder, Protocol):
    """A `TokenBuilder` of a model's own tokenizer and chat template."""

    @property
    def stop_token_ids(self) -> list[int]:
        """Ids after which generation must stop so that a call can be read."""
        ...

    @property
    def end_token_ids(self) -> list[int]:
        """The tokenizer's end-of-sequence and padding ids, which end a generation."""
        ...

    def encode_completion(self, text: str) -> list[int]:
        """Ids of a completion's text, the end-of-turn token added."""
        ...

    def turn_in(self, ids: Sequence[int]) -> list[int]:
        """The ids up to the first that ends a completion."""
        ...


class TurnSession(Protocol):
    """The part of a session that turns use, so that a recording or a replay can take its place.

    Each member is described in `gateway.leases.session.Session`.
    """

    @property
    def tools(self) -> Mapping[str, ToolDefinition]: ...

    async def call(self, name: str, arguments: Any) -> ToolResult: ...

    async def invoke(self, role: Role, arguments: Mapping[str, Any], *, server: str) -> ToolResult: ...

    def reveal(self, names: Iterable[str]) -> None: ...

    def drain_server_events(self) -> ServerEvents: ...
