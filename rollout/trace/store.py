"""Traces on disk: one JSON line per trajectory, one write per line."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import structlog

from gateway.errors import ConfigError
from rollout.task import Origin, Task
from rollout.trace.record import (
    SCHEMA_VERSION,
    Failure,
    Reward,
    Span,
    SpanKind,
    StopReason,
    ToolEvent,
    Trace,
    Turn,
    UserEvent,
)
from rollout.types import FinishReason

log = structlog.get_logger(__name__)


class TraceStore:
    """The journal of one process: `{host}-{pid}-{start}.jsonl` in `directory`, opened at the first record.

    Each record is one `write` to a file opened for appending, so a process that is killed leaves whole records and
    at most half a last line, which readers skip.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self._file: int | None = None

    def append(self, trace: Trace) -> None:
        """Write one record; it is with the operating system when this returns.

        Raises:
            ConfigError: the directory cannot be written.
        """
        line = json.dumps(to_json(trace), ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        try:
            if self._file is None:
                self._file = self._open()
            written = os.write(self._file, line)
        except OSError as error:
            raise ConfigError(f"cannot write traces: {error.strerror}", file=self.directory, key="trace_dir") from error
        if written != len(line):
            raise ConfigError("cannot write traces: the disk is full", file=self.directory, key="trace_dir")

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _open(self) -> int:
        self.directory.mkdir(parents=True, exist_ok=True)
        name = f"{socket.gethostname()}-{os.getpid()}-{time.time_ns()}.jsonl"
        return os.open(self.directory / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o644)


def read_traces(directory: str | Path) -> Iterator[Trace]:
    """All traces of a directory, file by file in the order of their names, each in the order of writing."""
    for path in sorted(Path(directory).glob("*.jsonl")):
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if not line.endswith(b"\n"):
                    log.warning("half a record skipped", file=str(path), line=number)
                    continue
                yield from_json(json.loads(line), where=f"{path}:{number}")


def to_json(trace: Trace) -> dict[str, Any]:
    """The record as JSON, with `schema_version`."""
    record = {"schema_version": SCHEMA_VERSION, **_fields(trace)}
    record["task"] = trace.task.model_dump(mode="json")
    record["origin"] = trace.origin.model_dump(mode="json", by_alias=True)
    return record


def from_json(record: dict[str, Any], *, where: str = "record") -> Trace:
    """The inverse of `to_json`.

    Raises:
        ConfigError: the record has another schema version or lacks a field.
    """
    if record.get("schema_version") != SCHEMA_VERSION:
        raise ConfigError(
            f"trace schema version {record.get('schema_version')!r}, this program reads {SCHEMA_VERSION}", file=where
        )
    fields = {key: value for key, value in record.items() if key != "schema_version"}
    try:
        return Trace(
            **fields
            | {
                "task": Task.model_validate(fields["task"]),
                "origin": Origin.model_validate(fields["origin"]),
                "spans": [Span(**span | {"kind": SpanKind(span["kind"])}) for span in fields["spans"]],
                "turns": [_turn(turn) for turn in fields["turns"]],
                "stop_reason": StopReason(fields["stop_reason"]) if fields["stop_reason"] else None,
                "failure": _optional(Failure, fields["failure"]),
                "reward": _optional(Reward, fields["reward"]),
            }
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"not a trace record: {error}", file=where) from error


def _turn(fields: dict[str, Any]) -> Turn:
    return Turn(
        **fields
        | {
            "finish_reason": FinishReason(fields["finish_reason"]),
            "weights_version": tuple(fields["weights_version"]),
            "tools": [ToolEvent(**event) for event in fields["tools"]],
            "user": _optional(UserEvent, fields["user"]),
        }
    )


_Record = TypeVar("_Record", Failure, Reward, UserEvent)


def _optional(kind: type[_Record], fields: dict[str, Any] | None) -> _Record | None:
    return None if fields is None else kind(**fields)


def _fields(trace: Trace) -> dict[str, Any]:
    # Not `asdict(trace)`: that would copy the token lists and walk into the pydantic parts.
    fields = {name: getattr(trace, name) for name in trace.__dataclass_fields__}
    return fields | {
        "spans": [asdict(span) for span in trace.spans],
        "turns": [asdict(turn) for turn in trace.turns],
        "failure": asdict(trace.failure) if trace.failure else None,
        "reward": asdict(trace.reward) if trace.reward else None,
    }


@dataclass(frozen=True, slots=True)
class RunKey:
    """What identifies a trajectory of `mcp-rollout run` across interruptions."""

    environment: str
    task: str
    row: int
    sample: int

    @classmethod
    def of(cls, trace: Trace) -> RunKey:
        return cls(trace.task.environment, trace.task.task, trace.origin.row, trace.origin.sample)
