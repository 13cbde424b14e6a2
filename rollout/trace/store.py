"""Traces on disk: one JSON line per trajectory, one write per line."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import structlog
from pydantic import TypeAdapter, ValidationError

from gateway.errors import ConfigError
from rollout.trace.record import SCHEMA_VERSION, Trace

log = structlog.get_logger(__name__)

_RECORD = TypeAdapter(Trace)


class NotARecord(ConfigError):
    """A line of a journal that is no trace: half written, or not ours."""


class TraceStore:
    """The journal of one process: `{host}-{pid}-{start}.jsonl` in `directory`, opened at the first record.

    Each record is one `write` to a file opened for appending, so a process that is killed leaves whole records and
    at most half a last line.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self._file: int | None = None

    def append(self, trace: Trace) -> None:
        """Write one record; it is with the operating system when this returns.

        Raises:
            ConfigError: the directory cannot be written.
        """
        line = to_json(trace) + b"\n"
        try:
            if self._file is None:
                self._file = self._open()
            written = os.write(self._file, line)
        except OSError as error:
            raise ConfigError(f"cannot write traces: {error.strerror}", file=self.directory, key="trace_dir") from error
        if written != len(line):
            # Half a record must not be continued by the next one.
            os.ftruncate(self._file, os.lseek(self._file, 0, os.SEEK_END) - written)
            raise ConfigError("cannot write traces: the disk is full", file=self.directory, key="trace_dir")

    def check(self) -> None:
        """Raises ConfigError where the directory cannot be made or written."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.directory):
                pass
        except OSError as error:
            raise ConfigError(f"cannot write traces: {error.strerror}", file=self.directory, key="trace_dir") from error

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _open(self) -> int:
        self.directory.mkdir(parents=True, exist_ok=True)
        name = f"{socket.gethostname()}-{os.getpid()}-{time.time_ns()}.jsonl"
        return os.open(self.directory / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o644)


def read_traces(directory: str | Path) -> Iterator[Trace]:
    """All traces of a directory, file by file in the order of their names, each in the order of writing.

    A line that is no record is logged and skipped, so that it does not hide the others. Raises ConfigError for records
    of another schema version.
    """
    for path in sorted(Path(directory).glob("*.jsonl")):
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    yield from_json(line, where=f"{path}:{number}")
                except NotARecord as error:
                    log.warning("not a record, skipped", problem=str(error))


def to_json(trace: Trace) -> bytes:
    """The record as one line of JSON."""
    return _RECORD.dump_json(trace, by_alias=True)


def from_json(line: bytes | str, *, where: str = "record") -> Trace:
    """The inverse of `to_json`.

    Raises:
        NotARecord: the line is not a trace.
        ConfigError: the record has another schema version.
    """
    try:
        trace = _RECORD.validate_json(line)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        key = ".".join(map(str, fault["loc"])) or None
        raise NotARecord(f"not a trace record: {fault['msg']}", file=where, key=key) from error
    if trace.schema_version != SCHEMA_VERSION:
        raise ConfigError(f"trace schema {trace.schema_version}, this program reads {SCHEMA_VERSION}", file=where)
    return trace


@dataclass(frozen=True, slots=True)
class RunKey:
    """What identifies a trajectory of `mcp-rollout run` across interruptions."""

    engine: str
    environment: str
    task: str
    row: int
    sample: int

    @classmethod
    def of(cls, trace: Trace) -> RunKey:
        return cls(trace.origin.engine, trace.task.environment, trace.task.task, trace.origin.row, trace.origin.sample)
