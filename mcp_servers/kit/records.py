"""The contract's records: the messages that `score` receives, and what harness tools and the policy's tools return."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, Literal, cast

from mcp_types import CallToolResult, TextContent
from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

Split = Literal["train", "test"]
Difficulty = Literal["easy", "medium", "hard"]


class _Received(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class FunctionCall(_Received):
    name: str
    arguments: str | dict[str, Any] = {}


class ToolCall(_Received):
    function: FunctionCall

    @property
    def name(self) -> str:
        """The server's own name for the tool: the gateway's `server__name` without the server."""
        return self.function.name.rpartition("__")[2]

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments; empty if they are not a JSON object, because such a call was never sent."""
        if isinstance(self.function.arguments, dict):
            return self.function.arguments
        try:
            parsed: Any = json.loads(self.function.arguments)
        except ValueError:
            return {}
        return cast("dict[str, Any]", parsed) if isinstance(parsed, dict) else {}


class TextPart(_Received):
    text: str = ""


class Message(_Received):
    """A chat message in OpenAI's format."""

    role: str
    content: str | list[TextPart] | None = None
    tool_calls: list[ToolCall] | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""

    @property
    def is_for_user(self) -> bool:
        """Whether the user reads this message: an assistant message with text and without tool calls."""
        return self.role == "assistant" and not self.tool_calls and bool(self.text.strip())


def texts_for_user(messages: Sequence[Message]) -> list[str]:
    """Texts of the messages that the user reads, in order."""
    return [message.text for message in messages if message.is_for_user]


class HarnessResult(BaseModel):
    """Base of the returned records. Fields that are None are left out of the JSON."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _names_its_fields(cls, given: Any) -> Any:
        """Raise TypeError as a call of any function does, in place of two errors about one misspelt word."""
        names = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
        for name in names.keys() - cls.model_fields:
            near = get_close_matches(name, cls.model_fields, 1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; it has {', '.join(cls.model_fields)}"
            raise TypeError(f"{cls.__name__} has no field {name!r}{hint}")
        return cast("Any", given)

    @model_serializer(mode="wrap")
    def _without_absent(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in handler(self).items() if value is not None}


class Done(HarnessResult):
    """An empty result."""


class TaskItem(HarnessResult):
    task: str
    seed: int
    prompt: str | None = None
    """The user's opening message, equal to what `start` returns."""
    answer: str | None = None
    """The row's ground truth, for rewards that compare with it."""
    difficulty: Difficulty | None = None
    tools: list[str] | None = None
    """Names of the tools that the policy is shown; None shows all."""
    later_tools: list[str] | None = None
    """Names of the tools that are refused, and not shown in the prompt, until a `reply` names them in its `tools`."""


class TaskList(HarnessResult):
    tasks: list[TaskItem]


class Call(HarnessResult):
    """A tool call of the scripted expert."""

    name: str
    arguments: dict[str, Any]


class ExpertTurn(HarnessResult):
    """One assistant turn: tool calls, or content for the user."""

    thinking: str | None = None
    content: str | None = None
    calls: list[Call] | None = None


class Expert(HarnessResult):
    turns: list[ExpertTurn]


class Score(HarnessResult):
    score: float
    """0 to 1."""
    parts: dict[str, float] = Field(default_factory=dict[str, float])
    """Named values of which it consists; the environment's `reward.parts` names the same ones."""


class Opening(HarnessResult):
    message: str


class Reply(HarnessResult):
    message: str
    done: bool
    reward: float | None = None
    tools: list[str] | None = None
    """Names of the task's `later_tools` that the policy may call from now on. The message has to describe them."""
    state: str | None = None
    """A digest of the world's state after the reply, see `tool_result`."""


class Elicited(HarnessResult):
    """The user's answer to a question that a server asks during a tool call."""

    action: Literal["accept", "decline", "cancel"]
    content: dict[str, Any] | None = None
    """With `accept`: data that fits the question's schema."""


class Snapshot(HarnessResult):
    state: dict[str, Any]
    """JSON from which `restore` makes the same world again."""


REWARD_META = "mcp-rollout/reward"
DONE_META = "mcp-rollout/done"
STATE_META = "mcp-rollout/state"
VOLATILE_META = "mcp-rollout/volatile"


def tool_result(
    text: str,
    *,
    reward: float | None = None,
    state: Any = None,
    volatile: Sequence[str] = (),
    is_error: bool = False,
    done: bool = False,
) -> CallToolResult:
    """A result that the policy reads as `text`, for a tool that is declared `-> CallToolResult`.

    Args:
        reward: Of this turn; read from servers that the environment marks as trusted.
        state: JSON from which the world's state after the call follows. Its digest tells which turns of several
            trajectories were taken in the same state; None gives none.
        volatile: Dotted paths of fields, where `text` is JSON, that differ each time although nothing else does.
        is_error: Whether the tool refused.
        done: Whether the world ended with this call, and so the trajectory; read from trusted servers, as the reward.

    Raises:
        TypeError: `volatile` is one text, of which each letter would be a path.
    """
    if isinstance(volatile, str):
        raise TypeError(f"volatile is a text; give a list of paths, as in volatile=[{volatile!r}]")
    meta: dict[str, Any] = {} if reward is None else {REWARD_META: reward}
    meta |= {DONE_META: True} if done else {}
    meta |= {} if state is None else {STATE_META: digest(state)}
    meta |= {VOLATILE_META: list(volatile)} if volatile else {}
    return CallToolResult(content=[TextContent(type="text", text=text)], is_error=is_error, _meta=meta or None)


def digest(state: Any) -> str:
    """A short digest of JSON, the same in every process."""
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()[:16]
