"""Your own policy for `mcp-rollout run --engine examples.bisecting_policy:engine`: it plays `guess`."""

from __future__ import annotations

from typing import Any

from mcp_rollout.rollout.engines.chat import ChatEngine, Reply
from mcp_rollout.rollout.engines.engine import EngineOptions
from mcp_rollout.rollout.types import Call


async def halve(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> Reply:
    """Guess the middle of what the answers so far leave open."""
    low, high, middle = 1, 100, 50
    for message in messages:
        if message["role"] == "tool":
            if message["content"] == "correct":
                return Reply(content=f"It is {middle}.")
            low, high = (middle + 1, high) if message["content"] == "higher" else (low, middle - 1)
            middle = (low + high) // 2
    return Reply(thinking=f"Between {low} and {high}.", calls=[Call(name="guess", arguments={"number": middle})])


def engine(options: EngineOptions) -> ChatEngine:
    """What `--engine` calls once for a run."""
    return ChatEngine(name="halving", complete=halve)
