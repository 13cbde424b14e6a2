"""What a request asks and what it is answered, whatever its dialect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import anyio

from mcp_rollout.rollout.programs.history import Fingerprint
from mcp_rollout.rollout.types import Message

MODEL, SMALL = "policy", "policy-small"
"""Names of models. The second is for what a program asks beside its conversation."""
TRAIN = "mcp-rollout-train"
"""A header, or a key of `metadata`: what is asked beside the conversation is trained."""
_MOST_CHANGES = 1000
"""Characters."""


class Unreadable(Exception):
    """A request that cannot be answered; the text says what to change."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AnsweredCall:
    id: str
    name: str
    arguments: str
    """As JSON; of a call that could not be read, the problem."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """One turn of the policy."""

    text: str
    thinking: str = ""
    calls: tuple[AnsweredCall, ...] = ()
    is_cut: bool = False
    """Whether a limit ended it."""
    prompt_tokens: int = 0
    sampled_tokens: int = 0

    def without(self, message: Message | None) -> Answer:
        """The rest, for a program that has kept this part of it from a stream that broke."""
        if message is None:
            return self
        had = {call["id"] for call in message.get("tool_calls") or ()}
        text = "" if message["content"] == self.text else self.text
        rest = replace(self, text=text, thinking="", calls=tuple(call for call in self.calls if call.id not in had))
        return rest if rest.text or rest.calls else self

    def changed_to(self, message: Message) -> str:
        """What a program changed that tells it anew; empty for nothing."""
        changes: list[str] = []
        for call, back in zip(self.calls, message.get("tool_calls") or (), strict=False):
            again = back["function"]
            own = {"name": call.name, "arguments": call.arguments}
            changes += [f"{what} {told!r} as {again[what]!r}" for what, told in own.items() if told != again[what]]
        return "; ".join(changes)[:_MOST_CHANGES]

    def covers(self, message: Message) -> bool:
        """Whether a message is a part of it, as a program keeps it."""
        had = [call["id"] for call in message.get("tool_calls") or ()]
        is_begun = had == [call.id for call in self.calls[: len(had)]]
        return message["role"] == "assistant" and message["content"] in ("", self.text) and is_begun


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why there is no answer: the trajectory is over, or the request cannot be answered."""

    problem: str
    is_length: bool = False
    """Whether the conversation has become too long for the model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """A request as read from its body.

    Args:
        messages: One system message at most, and first; `content` is text, `arguments` of calls are JSON text.
        tools: OpenAI-style, with flat names: those that `tool_choice` leaves.
        offered: All tools.
        model: The model's name as the program gives it.
        most_calls: The most calls of the answer; None for any number.
        labels: `metadata` and headers.
    """

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]]
    offered: Sequence[Mapping[str, Any]]
    model: str
    stream: bool
    max_tokens: int | None
    most_calls: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(eq=False, kw_only=True, slots=True)
class Waiting:
    """A request until it is answered; its repetitions wait for the same answer."""

    asked: Asked
    fingerprint: Fingerprint
    done: anyio.Event = field(default_factory=anyio.Event)
    outcome: Answer | Refusal | None = None
    turn: int = -1
    """Which it was answered by; below 0 for none of the trace's."""

    def is_repeated_by(self, fingerprint: Fingerprint, messages: Sequence[Message]) -> bool:
        """Whether a request is this one again, perhaps with the part of the answer that arrived."""
        if not self.fingerprint.begins(fingerprint):
            return False
        more = messages[len(self.fingerprint.messages) :]
        return not more or (len(more) == 1 and isinstance(self.outcome, Answer) and self.outcome.covers(more[0]))
