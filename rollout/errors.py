"""Exceptions that end a trajectory besides a broken world; `gateway.errors` has the three kinds of failure."""

from __future__ import annotations

from gateway.errors import CodedError


class RolloutError(CodedError):
    """The trajectory could not be played; like a `GatewayError`, it is recorded and withdrawn."""


class EngineError(RolloutError):
    """The policy's engine failed, or did not return a completion."""


class PromptTooLong(RolloutError):
    """The rendered prompt exceeds the trainer's prompt length; it is never cut."""
