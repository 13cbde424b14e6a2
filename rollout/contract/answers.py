"""Harness answers, held to the letter: what a trajectory tolerates is refused here."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Finite = Annotated[float, Field(allow_inf_nan=False)]


class _Answer(BaseModel):
    model_config = ConfigDict(strict=True)


class Opening(_Answer):
    message: str


class Reply(_Answer):
    message: str
    done: bool
    reward: Finite | None = None


class Elicited(_Answer):
    action: Literal["accept", "decline", "cancel"]
    content: dict[str, Any] | None = None


class Score(_Answer):
    score: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
    parts: dict[str, Finite]


class Snapshot(_Answer):
    state: Any


class Silent(_Answer):
    """Roles without an answer; what a foreign tool says is nobody's business."""


class TaskItem(_Answer):
    task: str
    seed: int
    prompt: str | None = None
    answer: str | None = None


class TaskList(_Answer):
    tasks: list[TaskItem]


class Call(_Answer):
    name: str
    arguments: dict[str, Any] = {}


class Turn(_Answer):
    thinking: str | None = None
    content: str | None = None
    calls: list[Call] | None = None


class Script(_Answer):
    turns: list[Turn]
