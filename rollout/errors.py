"""Exceptions that end a trajectory besides a broken world; `gateway.errors` has the three kinds of failure."""

from __future__ import annotations

from mcp_rollout.gateway.errors import CodedError, GatewayError
from mcp_rollout.gateway.types import ToolResult


class RolloutError(CodedError):
    """The trajectory could not be played; like a `GatewayError`, it is recorded and withdrawn."""


class EngineError(RolloutError):
    """The policy's engine failed, or did not return a completion."""


class ContextExceeded(EngineError):
    """The conversation is longer than a chat API takes; the trajectory ends as `token_limit`."""


class PromptTooLong(RolloutError):
    """The rendered prompt exceeds the trainer's prompt length; it is never cut."""


class RewardError(RolloutError):
    """A reward function or a rubric's judge of the environment's gave no usable number."""


class AgentError(RolloutError):
    """The agent raised an exception, took no turn, or used its `Turns` in an order that has no meaning."""


class AgentTimeout(AgentError):
    """The agent was still running `agent_close_timeout_s` after its trajectory had ended."""


class Diverged(GatewayError):
    """A world that was to repeat a recorded one did not. The leaf of a tree is rolled out again, as a chain.

    Args:
        result: What the call that differed answered now; None if no call did.
    """

    def __init__(self, message: str, *, result: ToolResult | None = None) -> None:
        self.result = result
        super().__init__(message)


class StopTraining(RuntimeError):
    """Training must not go on; the message has the reason, for the user. The trainer ends with exit status 3."""


class WorkerDied(RolloutError):
    """The trainer's process that played the trajectory died, and so did its replacement."""
