"""Export traces as training data: conversations for SFT, or preference pairs of trajectories of the same row.

Both contain thinking and tool calls.
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
    """The outcome of an export."""

    rows: int
    left_out: int
    """Trajectories that are not exported: failed ones, those with an unreadable call, and those that scored too low or
    have no partner for a pair."""


def export_sft(
    traces: Iterable[Trace], path: str | Path, *, tools: ToolsByEnvironment, min_reward: float = 1.0
) -> Exported:
    """Write trajectories as JSON lines, see `sft_row`; the file appears whole or not at all.

    Args:
        min_reward: the lowest score of an exported trajectory.

    Raises:
        ConfigError: the file cannot be written, or `tools` lacks an environment or a tool of a trace.
    """
    total = 0

    def rows() -> Iterator[dict[str, Any]]:
        nonlocal total
        for trace in traces:
            total += 1
            if _is_usable(trace) and trace.reward and trace.reward.reaches(min_reward):
                yield sft_row(trace, tools)

    written = _write(path, rows())
    return Exported(rows=written, left_out=total - written)


def export_preferences(
    traces: Iterable[Trace], path: str | Path, *, tools: ToolsByEnvironment, min_margin: float
) -> Exported:
    """Write preference pairs as JSON lines, see `preference_row`; the file appears whole or not at all.

    Within a row the best trajectory is paired with the worst, the second best with the second worst and so on, while
    their rewards differ by at least `min_margin`. Each trajectory is in one pair at most.

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
        if _is_usable(trace):
            groups[_same_row(trace)].append(trace)
    pairs = [pair for group in groups.values() for pair in _pairs(group, min_margin)]
    rows = _write(path, (preference_row(better, worse, tools) for better, worse in pairs))
    return Exported(rows=rows, left_out=total - 2 * rows)


def preference_row(better: Trace, worse: Trace, tools: ToolsByEnvironment) -> dict[str, Any]:
    """Build a row with `prompt`, `chosen` and `rejected` as lists of messages; the last two continue the prompt.

    Messages are as in `sft_row`.

    Raises:
        ConfigError: `tools` lacks the traces' environment or one of its tools.
    """
    return {
        "prompt": _messages(better)[: better.opening],
        "chosen": _messages(better)[better.opening :],
        "rejected": _messages(worse)[worse.opening :],
        **_source(better, tools),
        "chosen_trajectory": better.id,
        "rejected_trajectory": worse.id,
        "chosen_reward": _score(better),
        "rejected_reward": _score(worse),
    }


def _same_row(trace: Trace) -> str:
    """A key of the task, the tools and the messages before the first turn, which a pair must share."""
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
    """Write the rows and return their number. Without rows the file is left as it is."""
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
    """Build a row with `messages`, `tools` and the origin of the trajectory.

    Assistant messages have `reasoning_content` where there was thinking. The arguments of `tool_calls` are JSON text,
    as in OpenAI's API, so that rows with different tools have one schema. Messages after the last assistant message are
    left out.

    Raises:
        ConfigError: `tools` lacks the trace's environment or one of its tools.
    """
    return {
        "messages": _messages(trace),
        **_source(trace, tools),
        "trajectory": trace.id,
        "reward": trace.reward.score if trace.reward else None,
        "stop_reason": str(trace.stop_reason),
    }


def _source(trace: Trace, tools: ToolsByEnvironment) -> dict[str, Any]:
    task = trace.task
    schemas = offered_schemas(trace, tools)
    return {"tools": schemas, "environment": task.environment, "task": task.task, "seed": task.seed}


def _is_usable(trace: Trace) -> bool:
    """Whether the trajectory ended, was scored, and has no unreadable call."""
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
    """The schemas of the tools that the policy of the trace was offered.

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
