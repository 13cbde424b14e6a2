"""Traces as data for supervised training: one chat conversation per trajectory, thinking and tool calls included."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.errors import ConfigError
from rollout.trace.record import Trace, Turn
from rollout.types import Message

ToolsByEnvironment = Mapping[str, Sequence[Mapping[str, Any]]]
"""OpenAI-style tool schemas by environment name; a trace names its tools but does not hold their schemas."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Exported:
    """What an export came to."""

    rows: int
    left_out: int
    """Trajectories that failed, scored less than asked for, or called a tool in a way that could not be read."""


def export_sft(
    traces: Iterable[Trace], path: str | Path, *, tools: ToolsByEnvironment, min_reward: float = 1.0
) -> Exported:
    """Write the trajectories worth imitating as JSON lines; the file appears whole or not at all.

    Args:
        min_reward: the least score of a trajectory that is exported.

    Raises:
        ConfigError: the file cannot be written, or `tools` lacks an environment or a tool of a trace.
    """
    path = Path(path)
    partial = path.with_name(path.name + ".partial")
    rows = left_out = 0
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("w", encoding="utf-8") as file:
            for trace in traces:
                if not _is_worth_imitating(trace, min_reward):
                    left_out += 1
                    continue
                file.write(json.dumps(sft_row(trace, tools), ensure_ascii=False) + "\n")
                rows += 1
        partial.replace(path)
    except OSError as error:
        raise ConfigError(f"cannot be written: {error.strerror or error}", file=path, key="-o") from error
    finally:
        partial.unlink(missing_ok=True)
    return Exported(rows=rows, left_out=left_out)


def sft_row(trace: Trace, tools: ToolsByEnvironment) -> dict[str, Any]:
    """A trajectory as `messages`, `tools` and where it comes from.

    Assistant messages carry `reasoning_content` where there was thinking. The arguments of `tool_calls` are JSON text,
    as in OpenAI's API, so that rows of different tools have one schema. What follows the last assistant message is
    left out.

    Raises:
        ConfigError: `tools` lacks the trace's environment or one of its tools.
    """
    return {
        "messages": _messages(trace),
        "tools": offered_schemas(trace, tools),
        "environment": trace.task.environment,
        "task": trace.task.task,
        "seed": trace.task.seed,
        "trajectory": trace.id,
        "reward": trace.reward.score if trace.reward else None,
        "stop_reason": str(trace.stop_reason),
    }


def _is_worth_imitating(trace: Trace, min_reward: float) -> bool:
    if trace.reward is None or trace.failure is not None or trace.reward.score < min_reward or not trace.turns:
        return False
    return all(event.name for turn in trace.turns for event in turn.tools)


def _messages(trace: Trace) -> list[Message]:
    turns = iter(trace.turns)
    messages = [
        _assistant(message, next(turns)) if message["role"] == "assistant" and index >= trace.opening else dict(message)
        for index, message in enumerate(trace.messages)
    ]
    while messages[-1]["role"] != "assistant":
        messages.pop()
    return messages


def _assistant(message: Message, turn: Turn) -> Message:
    exported: Message = {"role": "assistant", "content": message["content"]}
    if turn.thinking:
        exported["reasoning_content"] = turn.thinking
    if calls := message.get("tool_calls"):
        exported["tool_calls"] = [_call(call) for call in calls]
    return exported


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = json.dumps(function["arguments"], ensure_ascii=False)
    return {**call, "function": {"name": function["name"], "arguments": arguments}}


def offered_schemas(trace: Trace, tools: ToolsByEnvironment) -> list[Mapping[str, Any]]:
    """The schemas of the tools that the trace's policy was offered.

    Raises:
        ConfigError: `tools` lacks the trace's environment or one of its tools.
    """
    if trace.task.environment not in tools:
        raise ConfigError(f"no tool schemas of environment {trace.task.environment!r}", key="tools")
    schemas = tools[trace.task.environment]
    if trace.task.tools is None:
        return list(schemas)
    by_name = {schema["function"]["name"]: schema for schema in schemas}
    if missing := [name for name in trace.task.tools if name not in by_name]:
        raise ConfigError(f"no schemas of the tools {missing}", key="tools", file=trace.task.environment)
    return [by_name[name] for name in trace.task.tools]
