"""Traces on disk: one JSON line per trajectory, one write per line; large journals are sealed into Parquet."""

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
from rollout.trace.archive import SUFFIX, sealed_records, write_sealed
from rollout.trace.record import SCHEMA_VERSION, Trace

log = structlog.get_logger(__name__)

SEAL_BYTES = 64 * 2**20
"""A journal of this size, some thousands of trajectories, is sealed: a tenth of it stays on disk."""
_RECORD = TypeAdapter(Trace)


class NotARecord(ConfigError):
    """A line of a journal that is no trace: half written, or not ours."""


class TraceStore:
    """The journal of one process: `{host}-{pid}-{start}.jsonl` in `directory`, opened at the first record.

    Each record is one `write` to a file opened for appending, so a process that is killed leaves whole records and
    at most half a last line; nothing is buffered, and a store that is forgotten closes itself. A journal of
    `seal_bytes` becomes `{its name}.traces.parquet`, and another is begun.
    """

    def __init__(self, directory: str | Path, *, seal_bytes: int = SEAL_BYTES, key: str = "trace_dir") -> None:
        """`key` is where the user named the directory, for errors."""
        self._file: int | None = None
        self.directory = Path(directory)
        self._key = key
        self._seal_bytes = seal_bytes
        self._path: Path | None = None

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
            raise self._unwritable(error.strerror) from error
        if written != len(line):
            # Half a record must not be continued by the next one.
            os.ftruncate(self._file, os.lseek(self._file, 0, os.SEEK_END) - written)
            raise self._unwritable("the disk is full")
        if os.lseek(self._file, 0, os.SEEK_END) >= self._seal_bytes:
            self._seal()

    def check(self) -> None:
        """Raises ConfigError where the directory cannot be made or written."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.directory):
                pass
        except OSError as error:
            raise self._unwritable(error.strerror) from error

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    __del__ = close

    def _unwritable(self, problem: str | None) -> ConfigError:
        remedy = "name a directory that can be written"
        return ConfigError(f"cannot write traces: {problem}", file=self.directory, key=self._key, remedy=remedy)

    def _open(self) -> int:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._path = self.directory / f"{socket.gethostname()}-{os.getpid()}-{time.time_ns()}.jsonl"
        return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o644)

    def _seal(self) -> None:
        """A journal that cannot be sealed stays as it is: nothing is lost, and the next one is begun."""
        assert self._path is not None
        self.close()
        try:
            write_sealed(_sealed(self._path), ((from_json(line), line.decode()) for _, line in _journal(self._path)))
            self._path.unlink()
        except (OSError, ConfigError) as error:
            log.warning("journal not sealed", journal=str(self._path), problem=str(error))


def read_traces(directory: str | Path) -> Iterator[Trace]:
    """All traces of a directory, file by file in the order of their names, each in the order of writing.

    A line that is no record is logged and skipped, so that it does not hide the others. Raises ConfigError for records
    of another schema version.
    """
    directory = Path(directory)
    journals = {
        path.name.removesuffix(suffix) for suffix in (".jsonl", SUFFIX) for path in directory.glob(f"*{suffix}")
    }
    for journal in sorted(journals):
        for where, line in _lines(directory / f"{journal}.jsonl"):
            try:
                yield from_json(line, where=where)
            except NotARecord as error:
                log.warning("not a record, skipped", problem=str(error))


def _sealed(journal: Path) -> Path:
    return journal.with_name(journal.name.removesuffix(".jsonl") + SUFFIX)


def _lines(journal: Path) -> Iterator[tuple[str, bytes | str]]:
    """Each line and where it stands, from the journal or, once that is whole, from what it was sealed into."""
    sealed = _sealed(journal)
    if not sealed.exists():
        try:
            yield from _journal(journal)
            return
        except FileNotFoundError:  # sealed in the meantime: it is opened before its first line is given out
            pass
    yield from ((f"{sealed}:{number}", line) for number, line in enumerate(sealed_records(sealed), 1))


def _journal(path: Path) -> Iterator[tuple[str, bytes]]:
    with path.open("rb") as lines:
        yield from ((f"{path}:{number}", line.removesuffix(b"\n")) for number, line in enumerate(lines, 1))


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
