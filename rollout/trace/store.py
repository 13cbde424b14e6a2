"""Traces on disk: a journal with one JSON line per trajectory; large journals are archived as Parquet files."""

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
from rollout.trace.archive import SUFFIX, archived_records, write_archive
from rollout.trace.record import SCHEMA_VERSION, Trace

log = structlog.get_logger(__name__)

ARCHIVE_BYTES = 64 * 2**20
"""Size at which a journal is archived: some thousands of trajectories, of which the archive needs a tenth on disk."""
_RECORD = TypeAdapter(Trace)


class NotARecord(ConfigError):
    """A line of a journal is not a trace: half written, or of another program."""


class TraceStore:
    """The journal of one process: `{host}-{pid}-{start}.jsonl` in `directory`, opened at the first record.

    Each record is one unbuffered `write` to a file opened for appending, so a process that is killed leaves complete
    records and at most one partial line at the end. A journal of `archive_bytes` is archived as
    `{name}.traces.parquet`, and the next record begins a new one. The file is closed with the last reference to the
    store.

    Args:
        directory: where the journals are written; created with the first record.
        archive_bytes: size at which a journal is archived.
        key: the option or configuration key that names the directory, for errors.
    """

    def __init__(self, directory: str | Path, *, archive_bytes: int = ARCHIVE_BYTES, key: str = "trace_dir") -> None:
        self._file: int | None = None
        self.directory = Path(directory)
        self._key = key
        self._archive_bytes = archive_bytes
        self._path: Path | None = None

    def append(self, trace: Trace) -> None:
        """Write one record; the operating system has it when this returns.

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
            # Remove the partial line, so that the next record begins on a line of its own.
            os.ftruncate(self._file, os.lseek(self._file, 0, os.SEEK_END) - written)
            raise self._unwritable("the disk is full")
        if os.lseek(self._file, 0, os.SEEK_END) >= self._archive_bytes:
            self._archive()

    def check(self) -> None:
        """Create the directory. Raises ConfigError where it cannot be created or written."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.directory):
                pass
        except OSError as error:
            raise self._unwritable(error.strerror) from error

    def close(self) -> None:
        """Close the journal; another record would begin a new one."""
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

    def _archive(self) -> None:
        """Replace the journal by its archive. A journal that cannot be archived stays, and the next one begins."""
        assert self._path is not None
        self.close()
        try:
            lines = (line for _, line in _journal(self._path))
            write_archive(_archive_of(self._path), ((from_json(line), line.decode()) for line in lines))
            self._path.unlink()
        except (OSError, ConfigError) as error:
            log.warning("journal not archived", journal=str(self._path), problem=str(error))


def read_traces(directory: str | Path) -> Iterator[Trace]:
    """Read all traces of a directory: files in the order of their names, records in the order of writing.

    A line that is not a record is logged and skipped.

    Raises:
        ConfigError: a record has another schema version.
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


def _archive_of(journal: Path) -> Path:
    return journal.with_name(journal.name.removesuffix(".jsonl") + SUFFIX)


def _lines(journal: Path) -> Iterator[tuple[str, bytes | str]]:
    """Each line with its file and number, from the archive if there is one, else from the journal."""
    archive = _archive_of(journal)
    if not archive.exists():
        try:
            yield from _journal(journal)
            return
        except FileNotFoundError:  # archived since the check; nothing was yielded, since opening comes first
            pass
    yield from ((f"{archive}:{number}", line) for number, line in enumerate(archived_records(archive), 1))


def _journal(path: Path) -> Iterator[tuple[str, bytes]]:
    with path.open("rb") as lines:
        yield from ((f"{path}:{number}", line.removesuffix(b"\n")) for number, line in enumerate(lines, 1))


def to_json(trace: Trace) -> bytes:
    """The record as one line of JSON."""
    return _RECORD.dump_json(trace, by_alias=True)


def from_json(line: bytes | str, *, where: str = "record") -> Trace:
    """Read a record, the inverse of `to_json`.

    Args:
        line: the record.
        where: file and line, for errors.

    Raises:
        NotARecord: the line is not a trace record.
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
    """Identity of a trajectory of `mcp-rollout run`, the same when an interrupted run is resumed."""

    engine: str
    environment: str
    task: str
    row: int
    sample: int

    @classmethod
    def of(cls, trace: Trace) -> RunKey:
        return cls(trace.origin.engine, trace.task.environment, trace.task.task, trace.origin.row, trace.origin.sample)
