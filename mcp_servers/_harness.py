"""Harness tools: what the rollout calls and the policy never sees. The records here are their results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations
from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer

ROLE_META = "mcp-rollout/role"

HarnessRole = Literal["reset", "start", "reply", "elicit", "score", "release", "tasks", "expert"]
Split = Literal["train", "test"]
F = TypeVar("F", bound=Callable[..., Any])

READ = ToolAnnotations(read_only_hint=True, idempotent_hint=True, destructive_hint=False, open_world_hint=False)
"""Looks and changes nothing."""
SET = ToolAnnotations(read_only_hint=False, idempotent_hint=True, destructive_hint=True, open_world_hint=False)
"""Sets something to what the arguments say: a second identical call has no further effect and the same answer."""
NOTE = ToolAnnotations(read_only_hint=False, idempotent_hint=True, destructive_hint=False, open_world_hint=False)
"""Like `SET`, and takes nothing away."""
CHANGE = ToolAnnotations(read_only_hint=False, idempotent_hint=False, destructive_hint=True, open_world_hint=False)
"""Changes the world; a second identical call is another matter (here: it is refused)."""

_ANNOTATIONS: dict[HarnessRole, ToolAnnotations] = {
    "reset": SET,
    "start": READ,
    "reply": NOTE,
    "elicit": NOTE,
    "score": READ,
    "release": SET,
    "tasks": READ,
    "expert": READ,
}


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
    prompt: str
    """The user's opening message; `start` gives the same."""
    difficulty: Literal["easy", "medium", "hard"]


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


def harness_tool(server: MCPServer, role: HarnessRole) -> Callable[[F], F]:
    """Registers the decorated function as the server's harness tool for `role`, under the role's name."""
    return server.tool(name=role, meta={ROLE_META: role}, annotations=_ANNOTATIONS[role])
