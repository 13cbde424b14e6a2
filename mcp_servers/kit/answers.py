"""What harness tools answer: the records of the contract, one for each role."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer

Split = Literal["train", "test"]


class HarnessResult(BaseModel):
    """A result in which what is absent is left out, not null."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_serializer(mode="wrap")
    def _without_absent(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in handler(self).items() if value is not None}


class Done(HarnessResult):
    """Nothing to say."""


class TaskItem(HarnessResult):
    task: str
    seed: int
    prompt: str | None = None
    """The user's opening message; `start` gives the same."""
    answer: str | None = None
    """The row's ground truth, for rewards that compare with it."""
    difficulty: Literal["easy", "medium", "hard"] | None = None


class TaskList(HarnessResult):
    tasks: list[TaskItem]


class Call(HarnessResult):
    """A tool call of the scripted expert."""

    name: str
    arguments: dict[str, Any]


class ExpertTurn(HarnessResult):
    """One assistant turn: calls, or content for the user."""

    thinking: str | None = None
    content: str | None = None
    calls: list[Call] | None = None


class Expert(HarnessResult):
    turns: list[ExpertTurn]


class Score(HarnessResult):
    score: float
    """0 to 1."""
    parts: dict[str, float]


class Opening(HarnessResult):
    message: str


class Reply(HarnessResult):
    message: str
    done: bool
    reward: float | None = None


class Elicited(HarnessResult):
    """The user's answer to a question that a server asks within a call."""

    action: Literal["accept", "decline", "cancel"]
    content: dict[str, Any] | None = None
    """With `accept`, by the question's schema."""


class Snapshot(HarnessResult):
    state: dict[str, Any]
    """Whatever `restore` needs to make the same world again."""
