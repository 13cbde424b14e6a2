"""Exceptions that end a trajectory besides a broken world; `gateway.errors` has the three kinds of failure."""

from __future__ import annotations


class RolloutError(Exception):
    """The trajectory could not be played; like a `GatewayError`, it is recorded and withdrawn."""

    kind = "rollout_error"


class EngineError(RolloutError):
    """The policy's engine failed, or did not return a completion."""

    kind = "engine_error"


class PromptTooLong(RolloutError):
    """The rendered prompt exceeds the trainer's prompt length; it is never cut."""

    kind = "prompt_too_long"
