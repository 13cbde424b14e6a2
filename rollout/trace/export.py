"""Export traces as training data for SFT.

It has two files: conversations, with thinking and tool calls, and the ids and loss masks of trajectories that a
conversation cannot represent.
"""

from __future__ import annotations

import json
from collections.abc import Container, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from mcp_rollout.gateway.errors import ConfigError, not_written
from mcp_rollout.gateway.private_files import make_private, private
from mcp_rollout.gateway.types import CallFault
from mcp_rollout.rollout.formats.control_text import KNOWN
from mcp_rollout.rollout.trace.record import SpanKind, Trace, Turn
from mcp_rollout.rollout.types import FinishReason, Message

ToolsByEnvironment = Mapping[str, Sequence[Mapping[str, Any]]]
"""OpenAI-style tool schemas by the name of a run record, or of an environment for traces without one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Exported:
    """The outcome of an export."""

    rows: int
    """Conversations."""
    left_out: int
    """Trajectories that are not exported: failed ones and those that scored too low."""
    as_ids: int = 0
    """Trajectories that are exported as ids and loss mask."""
    without_ids: int = 0
    """Trajectories that are left out because they need ids and have those of no model; `left_out` counts them too."""


def export_sft(
    traces: Iterable[Trace],
    path: str | Path,
    *,
    tools: ToolsByEnvironment,
    min_reward: float = 1.0,
    ids_only: bool = False,
    text_only: Container[str] = (),
) -> Exported:
    """Write trajectories as JSON lines: whole conversations to `path`, see `sft_row`, and all others to `ids_path`.

    A conversation whose texts spell control tokens is not whole as text: it becomes ids, and where there are none, each
    spelling gets a space. Each file appears whole or not at all.

    Args:
        min_reward: the lowest score of an exported trajectory.
        ids_only: whether conversations are exported as ids, too.
        text_only: run records of engines that gave text. Their ids are not a model's: only conversations are exported.

    Raises:
        ConfigError: a file cannot be written, or `tools` lacks an environment or a tool of a conversation.
    """
    as_ids = left_out = without_ids = 0
    with _JsonLines(path) as conversations, _JsonLines(ids_path(path)) as samples:
        for trace in traces:
            if not _is_scored(trace) or not trace.reward or not trace.reward.reaches(min_reward):
                left_out += 1
                continue
            is_text = trace.run in text_only
            is_whole = not ids_only and is_conversation(trace) and _trains_all(trace)
            row = sft_row(trace, tools) if is_whole else None
            if row is not None and (is_text or not _spells(trace, row)):
                conversations.write(_without_spellings(row))
                continue
            if is_text:
                without_ids += 1
                continue
            as_ids += 1
            for sample in ids_rows(trace):
                samples.write(sample)
    return Exported(rows=conversations.rows, left_out=left_out + without_ids, as_ids=as_ids, without_ids=without_ids)


def ids_path(path: str | Path) -> Path:
    """The file of ids and loss masks beside a file of conversations: `sft.ids.jsonl` beside `sft.jsonl`."""
    return Path(path).with_suffix(".ids.jsonl")


class _JsonLines:
    """A file of JSON lines that appears whole or not at all. Without rows, the file that was there stays."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._partial = self._path.with_name(self._path.name + ".partial")
        self.rows = 0

    def __enter__(self) -> Self:
        with _as_config_error(self._path):
            make_private(self._path.parent)
            self._file = open(self._partial, "w", encoding="utf-8", opener=private)
        return self

    def write(self, row: Mapping[str, Any]) -> None:
        with _as_config_error(self._path):
            self._file.write(json.dumps(row, ensure_ascii=False) + "\n")
        self.rows += 1

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            with _as_config_error(self._path):
                self._file.close()
                if self.rows and kind is None:
                    self._partial.replace(self._path)
        finally:
            self._partial.unlink(missing_ok=True)


@contextmanager
def _as_config_error(path: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise not_written(error, path, "-o") from error


def sft_row(trace: Trace, tools: ToolsByEnvironment) -> dict[str, Any]:
    """Build a row with `messages`, `tools` and the origin of the trajectory.

    Assistant messages have `reasoning_content` where there was thinking. The arguments of `tool_calls` are objects, as
    chat templates expect them. Messages after the last assistant message are left out.

    Raises:
        ConfigError: `tools` lacks the trace's environment or one of its tools.
    """
    return {"messages": _messages(trace), **_source(trace, tools), **_outcome(trace)}


def _spells(trace: Trace, row: Mapping[str, Any]) -> bool:
    """Whether texts of a conversation spell control tokens: a trainer that renders it would take them for these."""
    return trace.control_text > 0 or KNOWN.count(row["messages"], row["tools"]) > 0


def _without_spellings(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with a space in each spelling of a control token."""
    messages, tools = KNOWN.broken(row["messages"], row["tools"])
    return {**row, "messages": messages, "tools": tools}


def _source(trace: Trace, tools: ToolsByEnvironment) -> dict[str, Any]:
    task = trace.task
    schemas = offered_schemas(trace, tools)
    return {"tools": schemas, "environment": task.environment, "task": task.task, "seed": task.seed}


def ids_rows(trace: Trace) -> Iterator[dict[str, Any]]:
    """Build rows with `input_ids` and `loss_mask`, 1 where a token is in the loss: one for each training sample."""
    for number, segment in enumerate(trace.segments):
        yield {
            "input_ids": segment.prompt_ids + segment.response_ids,
            "loss_mask": [0] * len(segment.prompt_ids) + segment.loss_mask,
            "environment": trace.task.environment,
            "task": trace.task.task,
            "seed": trace.task.seed,
            **_outcome(trace),
            "sample": number,
        }


def _outcome(trace: Trace) -> dict[str, Any]:
    return {
        "trajectory": trace.id,
        "reward": trace.reward.score if trace.reward else None,
        "stop_reason": str(trace.stop_reason),
    }


def _is_scored(trace: Trace) -> bool:
    """Whether the trajectory was played to an end and scored."""
    return trace.reward is not None and trace.failure is None and bool(trace.turns)


def is_conversation(trace: Trace) -> bool:
    """Whether the messages are all that the policy wrote: every turn ended by itself, with an answer or a call.

    A template would close what a limit cut in mid-thought, and write an unreadable call as it was read.
    """
    return all(
        turn.finish_reason is FinishReason.STOP
        and (turn.content or turn.tools)
        and all(event.fault is not CallFault.UNREADABLE for event in turn.tools)
        for turn in trace.turns
    )


def _trains_all(trace: Trace) -> bool:
    """Whether all that was sampled is in the loss of one training sample, as in that of a conversation."""
    in_loss = all(
        span.kind is SpanKind.CONTEXT or (span.kind.is_sampled and 0 not in trace.loss_mask[span.start : span.end])
        for span in trace.spans
    )
    return not trace.earlier and in_loss


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
        exported["tool_calls"] = calls
    return exported


def offered_schemas(trace: Trace, tools: ToolsByEnvironment) -> list[Mapping[str, Any]]:
    """The schemas of the tools that the policy of the trace was offered.

    Raises:
        ConfigError: `tools` lacks the trace's environment or one of its tools.
    """
    schemas = tools.get(trace.run) if trace.run in tools else tools.get(trace.task.environment)
    if schemas is None:
        raise ConfigError(f"no tool schemas of environment {trace.task.environment!r}", key="tools")
    if trace.task.tools is None:
        return [schema for schema in schemas if trace.task.shows(schema["function"]["name"])]
    by_name = {schema["function"]["name"]: schema for schema in schemas}
    if missing := [name for name in trace.task.tools if name not in by_name]:
        raise ConfigError(f"no schemas of the tools {missing}", key="tools", file=trace.task.environment)
    return [by_name[name] for name in trace.task.tools]
