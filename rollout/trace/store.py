"""A directory of traces: writing it, one JSON line per trajectory in journals that are archived, and reading it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import anyio
import anyio.lowlevel
import structlog

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.gateway.private_files import make_private, private
from mcp_rollout.rollout.extras import install_command
from mcp_rollout.rollout.trace.files import (
    JOURNAL_SUFFIX,
    Skipped,
    TornArchive,
    archive_of,
    file_of,
    journals_of,
    no_records,
)
from mcp_rollout.rollout.trace.heartbeat import Heartbeat
from mcp_rollout.rollout.trace.journal import NotARecord, from_json, is_large, pieces, to_json
from mcp_rollout.rollout.trace.lines import lines_of
from mcp_rollout.rollout.trace.record import Trace
from mcp_rollout.rollout.trace.run_record import RunRecord, write_run_record

log = structlog.get_logger(__name__)

# The priority before the imports, which take a second of processor time.
_COMMAND = (
    "import os, sys; os.nice(10); from mcp_rollout.rollout.trace.archive import main; sys.exit(main(sys.argv[1]))"
)
ARCHIVE_BYTES = 64 * 2**20
"""Size at which a journal is archived."""
_ARCHIVE_S = 600.0
"""Seconds to wait for an archiver: one that takes longer goes on by itself."""
_MOST_PARTS = os.sysconf("SC_IOV_MAX") - 1
"""Parts that the system writes at once, besides the end of the line."""


class TraceStore:
    """The journal of one process: `{host}-{pid}-{start}.jsonl` in `directory`, opened at the first record.

    Each record is one unbuffered write to a file opened for appending, so a process that is killed leaves complete
    records and at most one partial line at the end. A journal of `archive_bytes` is archived in the background as
    `{name}.jsonl.zst`, and the next record begins a new one. The file is closed with the last reference to the
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
        self._archivers: list[threading.Thread] = []
        self.heartbeat = Heartbeat(self.directory)
        """Says what is in flight; `write` and `append` end what began there."""
        self._path: Path | None = None

    async def write(self, trace: Trace) -> None:
        """`append`, in between of which other tasks run where the record is large; also when it is cancelled."""
        if not is_large(trace):
            self.append(trace)
            return
        # Collected, and written at once below: in between, other tasks write their records to the same journal.
        parts, left = list[bytes](), pieces(trace)
        cancelled: BaseException | None = None
        try:
            with anyio.CancelScope(shield=True):
                for part in left:
                    parts.append(part)
                    await anyio.lowlevel.checkpoint()
        except anyio.get_cancelled_exc_class() as error:
            # The shield holds off scopes, and not `Task.cancel`, with which AReaL ends its tasks: the rest at once.
            cancelled = error
            parts += left
        self._ended(trace, parts)
        if cancelled is not None:
            raise cancelled

    def append(self, trace: Trace) -> None:
        """Write one record; the operating system has it when this returns.

        Raises:
            ConfigError: the directory cannot be written.
        """
        self._ended(trace, [to_json(trace)])

    def _ended(self, trace: Trace, parts: list[bytes]) -> None:
        try:
            self._append(parts)
        finally:
            # Also where there was no room for its record: it would be shown as in flight to the run's end.
            self.heartbeat.end(trace)

    def _append(self, parts: list[bytes]) -> None:
        # Joining a record of many megabytes takes longer than writing it, so the system gets its parts.
        line = [*parts, b"\n"] if len(parts) < _MOST_PARTS else [b"".join(parts), b"\n"]
        try:
            if self._file is None:
                self._file = self._open()
            written = os.writev(self._file, line)
        except OSError as error:
            raise self._unwritable(error.strerror) from error
        if written != sum(map(len, line)):
            # Remove the partial line, so that the next record begins on its own line.
            os.ftruncate(self._file, os.lseek(self._file, 0, os.SEEK_END) - written)
            raise self._unwritable("the disk is full")
        if os.lseek(self._file, 0, os.SEEK_END) >= self._archive_bytes:
            assert self._path is not None
            # Closed first: the archiver reads it to its end and removes it.
            self._close_journal()
            self._archive(self._path)

    def describe(self, record: RunRecord) -> str:
        """Write a run record beside the traces and return its name, which goes into each trace's `run`.

        Raises:
            ConfigError: the directory cannot be written.
        """
        try:
            return write_run_record(self.directory, record)
        except OSError as error:
            raise self._unwritable(error.strerror) from error

    def check(self) -> None:
        """Create the directory. Raises ConfigError where it cannot be created or written."""
        try:
            make_private(self.directory)
            # Tried out, since permissions say little: root has all, and a file system may be read-only or full.
            with tempfile.TemporaryFile(dir=self.directory):
                pass
        except OSError as error:
            raise self._unwritable(error.strerror) from error

    def close(self) -> None:
        """Close the journal; another record would begin a new one."""
        self.heartbeat.close()
        self._close_journal()

    def _close_journal(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    __del__ = _close_journal

    def wait_for_archives(self) -> None:
        """Wait until the journals that are being archived are, for a bounded time each."""
        for archiver in self._archivers:
            archiver.join(_ARCHIVE_S)

    def _archive(self, journal: Path) -> None:
        """Archive a closed journal in the background. One that cannot be archived stays, and the process says so."""
        if find_spec("pyarrow") is None:
            remedy = install_command("parquet")
            log.warning("journal not archived: pyarrow is not installed", journal=str(journal), remedy=remedy)
            return
        # Modules that a parent found through `sys.path` only, as in a Ray worker, are found by the child too.
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        # A thread, since starting a process and waiting for it would hold the event loop. It runs no Python code in
        # between, and does not keep the program from ending: the process then finishes by itself.
        run = partial(subprocess.run, env=environment, stdin=subprocess.DEVNULL, stdout=2, check=False)
        thread = threading.Thread(target=run, args=[[sys.executable, "-c", _COMMAND, journal]], daemon=True)
        self._archivers = [*filter(threading.Thread.is_alive, self._archivers), thread]
        thread.start()

    def _unwritable(self, problem: str | None) -> ConfigError:
        remedy = "name a directory that can be written"
        return ConfigError(f"cannot write traces: {problem}", file=self.directory, key=self._key, remedy=remedy)

    def _open(self) -> int:
        make_private(self.directory)
        name = f"{socket.gethostname()}-{os.getpid()}-{time.time_ns()}{JOURNAL_SUFFIX}"
        self._path = self.directory / name
        # O_EXCL: `_append` takes the end of the file for its own, so a journal must have one writer.
        return private(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL)


def read_traces(directory: str | Path, *, recursive: bool = False) -> Iterator[Trace]:
    """Read all traces of a directory: files in the order of their names, records in the order of writing.

    What is torn is logged and skipped: a partial last line, a line that is not a record, an incomplete archive.

    Raises:
        ConfigError: a record is of another version.
    """
    skipped = Skipped()
    for journal in journals_of(directory, recursive=recursive):
        yield from _read(journal, skipped)


def _read(journal: Path, skipped: Skipped) -> Iterator[Trace]:
    problems: list[NotARecord] = []
    try:
        for place, line in _lines(journal, skipped):
            try:
                yield from_json(line, where=f"{journal}:{place}")
            except NotARecord as error:
                problems.append(error)
    except TornArchive as error:
        skipped.log(archive_of(journal), error)
    if problems:
        skipped.log(journal, no_records(len(problems), str(problems[0])))


def _lines(journal: Path, skipped: Skipped) -> Iterator[tuple[int, bytes]]:
    for _ in range(2):
        # Where it was archived since the check, nothing was yielded, since opening comes first.
        with suppress(FileNotFoundError):
            if (path := file_of(journal, skipped)) is not None:
                yield from lines_of(path)
            return
