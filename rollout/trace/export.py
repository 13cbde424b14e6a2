"""Traces as training data: conversations to imitate, or pairs of a better and a worse one of the same row.

Thinking and tool calls are included in both.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.errors import ConfigError
from gateway.types import CallFault
from rollout.trace.record import ROUNDING, Trace, Turn
from rollout.types import Message

ToolsByEnvironment = Mapping[str, Sequence[Mapping[str, Any]]]
"""OpenAI-style tool schemas by environment name; a trace names its tools but does not hold their schemas."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Exported:
    """What an export came to."""

    rows: int
    left_out: int
    """Trajectories that failed, or called a tool in a way that could not be read; and those that scored less than asked
    for, or found no partner."""


def export_sft(
    traces: Iterable[Trace], path: str | Path, *, tools: ToolsByEnvironment, min_reward: float = 1.0
) -> Exported:
    """Write the trajectories worth imitating as JSON lines; the file appears whole or not at all.

    Args:
        min_reward: the least score of a trajectory that is exported.

    Raises:
        ConfigError: the file cannot be written, or `tools` lacks an environment or a tool of a trace.
    """
    exported = _Counting()

    def rows() -> Iterator[dict[str, Any]]:
        for trace in traces:
            if not (_can_be_imitated(trace) and trace.reward and trace.reward.reaches(min_reward)):
                exported.left_out += 1
                continue
            yield sft_row(trace, tools)

    return Exported(rows=_write(path, rows()), left_out=exported.left_out)


def export_preferences(
    traces: Iterable[Trace], path: str | Path, *, tools: ToolsByEnvironment, min_margin: float
) -> Exported:
    """Write pairs of trajectories of the same row as JSON lines; the file appears whole or not at all.

    Of each row's trajectories the best is paired with the worst, the second best with the second worst and so on, as
    long as their rewards differ by `min_margin`: each trajectory is in one pair at most.

    Raises:
        ConfigError: `min_margin` is not positive, the file cannot be written, or `tools` lacks an environment or a
            tool of a trace.
    """
    if min_margin <= 0:
        raise ConfigError("a pair needs a difference", key="--min-margin", remedy="give a number above 0")
    groups: defaultdict[str, list[Trace]] = defaultdict(list)
    total = 0
    for trace in traces:
        total += 1
        if _can_be_imitated(trace):
            groups[_same_row(trace)].append(trace)
    pairs = [pair for group in groups.values() for pair in _pairs(group, min_margin)]
    rows = _write(path, (preference_row(better, worse, tools) for better, worse in pairs))
    return Exported(rows=rows, left_out=total - 2 * rows)


def preference_row(better: Trace, worse: Trace, tools: ToolsByEnvironment) -> dict[str, Any]:
    """`prompt`, `chosen` and `rejected` as lists of messages, which continue the prompt, and `tools`.

    Messages are as in `sft_row`.

    Raises:
        ConfigError: `tools` lacks the traces' environment or one of its tools.
    """
    return {
        "prompt": _messages(better)[: better.opening],
        "chosen": _messages(better)[better.opening :],
        "rejected": _messages(worse)[worse.opening :],
        "tools": offered_schemas(better, tools),
        "environment": better.task.environment,
        "task": better.task.task,
        "seed": better.task.seed,
        "chosen_trajectory": better.id,
        "rejected_trajectory": worse.id,
        "chosen_reward": _score(better),
        "rejected_reward": _score(worse),
    }


@dataclass(slots=True)
class _Counting:
    left_out: int = 0


def _same_row(trace: Trace) -> str:
    """The task, the tools, and the messages before the first turn: what a pair must share."""
    task = trace.task
    return json.dumps([task.environment, task.task, task.seed, task.tools, trace.messages[: trace.opening]])


def _pairs(group: Sequence[Trace], min_margin: float) -> Iterator[tuple[Trace, Trace]]:
    ordered = sorted(group, key=_score, reverse=True)
    for index in range(len(ordered) // 2):
        better, worse = ordered[index], ordered[-1 - index]
        if _score(better) - _score(worse) < min_margin - ROUNDING:
            return
        yield better, worse


def _write(path: str | Path, rows: Iterable[Mapping[str, Any]]) -> int:
    """How many there were; where there were none, what `path` held stays as it is."""
    path = Path(path)
    partial = path.with_name(path.name + ".partial")
    count = 0
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("w", encoding="utf-8") as file:
            for row in rows:
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
                count += 1
        if count:
            partial.replace(path)
    except OSError as error:
        raise ConfigError(f"cannot be written: {error.strerror or error}", file=path, key="-o") from error
    finally:
        partial.unlink(missing_ok=True)
    return count


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


def _can_be_imitated(trace: Trace) -> bool:
    """Whether it ended, was scored, and every call in it could be read."""
    if trace.reward is None or trace.failure is not None or not trace.turns:
        return False
    return all(event.fault is not CallFault.UNREADABLE for turn in trace.turns for event in turn.tools)


def _score(trace: Trace) -> float:
    assert trace.reward is not None
    return trace.reward.score


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
