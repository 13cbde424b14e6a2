"""The index of a trace directory: an SQLite file beside the traces, with an entry for each trajectory.

Readers bring it up to date before they use it, and read only what was written since; writers of traces do not know it.
It is a cache: one that is missing, torn or of another version is made again from the files.
"""

from __future__ import annotations

import contextlib
import math
import os
import sqlite3
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

import structlog

from mcp_rollout.gateway.private_files import private
from mcp_rollout.rollout.trace.entries import COLUMNS, VERSION, Entry, entry_of
from mcp_rollout.rollout.trace.files import (
    ARCHIVE_SUFFIX,
    JOURNAL_SUFFIX,
    Skipped,
    TornArchive,
    files_of,
    no_records,
)
from mcp_rollout.rollout.trace.journal import NotARecord, from_json
from mcp_rollout.rollout.trace.lines import archived, lines_of

log = structlog.get_logger(__name__)

FILE = "traces.index.sqlite"
BUSY_TIMEOUT_S = 30.0
"""Seconds to wait for another reader that brings the same index up to date."""
_COMMIT_ROWS = 2000
_MOST_MEMORY = 256 << 20
"""Bytes of SQLite in a process with a bound on the time of queries: `where` can make values of any length."""
_STEPS_BETWEEN_CHECKS = 50_000
"""Instructions of SQLite between two looks at the clock."""
_TABLES = f"""
CREATE TABLE files (id INTEGER PRIMARY KEY, path TEXT UNIQUE, size INTEGER, changed INTEGER, indexed INTEGER,
    bad INTEGER, problem TEXT);
CREATE TABLE trajectories (file INTEGER, place INTEGER, {", ".join(f'"{name}"' for name in COLUMNS)});
CREATE INDEX trajectories_by_file ON trajectories (file);
CREATE INDEX trajectories_by_id ON trajectories (id);
"""
_INSERT = f"INSERT INTO trajectories VALUES ({', '.join('?' * (len(COLUMNS) + 2))})"


class Index:
    """The entries of a directory and its sub-directories, up to date after `refresh`.

    Args:
        directory: of the traces. Where it cannot be written, the index is made in a temporary directory.
        path: of the index's file; beside the traces by default.
        query_timeout_s: seconds after which a query ends with an error, and one that takes 256 MiB; None for no limit.
        skipped: logs files that cannot be read, also those of which that was known before; one of its own by default.
    """

    def __init__(
        self,
        directory: Path,
        path: Path | None = None,
        *,
        query_timeout_s: float | None = None,
        skipped: Skipped | None = None,
    ) -> None:
        self._directory, self._skipped = directory, skipped or Skipped()
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._path = path or directory / FILE
        self._query_timeout_s, self._deadline = query_timeout_s, math.inf
        try:
            self._database = self._opened()
        except sqlite3.OperationalError:
            self._move()
            self._database = self._opened()

    def beside(self, query_timeout_s: float) -> Index:
        """A second connection to the same file, for another thread."""
        return Index(self._directory, self._path, query_timeout_s=query_timeout_s, skipped=self._skipped)

    def close(self) -> None:
        self._database.close()
        if self._temporary is not None:
            self._temporary.cleanup()

    def refresh(self) -> None:
        """Add what was written since the last time, and drop what is gone.

        Raises:
            ConfigError: a record is of another version.
        """
        self._repairing(self._refresh)

    def prepare(self) -> None:
        """Make the tables where the index is missing, torn or of another version, without reading traces."""
        self._repairing(self._make)

    def _repairing(self, action: Callable[[], None]) -> None:
        try:
            action()
        except sqlite3.DatabaseError as error:
            if self._temporary is not None:
                raise
            log.info("index made again", index=str(self._path), problem=str(error))
            self._database.close()
            if not (_is_torn(error) and self._discard()):
                # A directory that only others may write, or a file system without locks.
                self._move()
            self._database = self._opened()
            action()

    def query(self, statement: str, values: Iterable[Any] = ()) -> Iterator[sqlite3.Row]:
        """Run one SQL query, which cannot change the index; the rows stream.

        Raises:
            sqlite3.Error: the statement is wrong.
        """
        self._database.execute("PRAGMA query_only = ON")
        if self._query_timeout_s is not None:
            self._deadline = time.monotonic() + self._query_timeout_s
        try:
            # Not `yield from`, which closes the cursor with the generator: a reader may close the database before, as
            # a command does whose output goes into `head`.
            for row in self._database.execute(statement, tuple(values)):  # noqa: UP028
                yield row
        finally:
            with contextlib.suppress(sqlite3.ProgrammingError):
                self._database.execute("PRAGMA query_only = OFF")

    def path_of(self, file: int) -> Path:
        """The journal or archive with this number."""
        (found,) = self._database.execute("SELECT path FROM files WHERE id = ?", [file]).fetchone()
        return self._directory / found

    def _opened(self) -> sqlite3.Connection:
        # Without the module's own transactions, which begin deferred: two refreshes that both have read and now want to
        # write would get SQLITE_BUSY at once, without the timeout.
        # An existing one is not opened here: closing it would drop the locks of this process.
        with contextlib.suppress(OSError):
            os.close(private(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL))
        database = sqlite3.connect(self._path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
        database.row_factory = sqlite3.Row
        if self._query_timeout_s is not None:
            database.set_progress_handler(lambda: time.monotonic() > self._deadline, _STEPS_BETWEEN_CHECKS)
            database.execute(f"PRAGMA hard_heap_limit = {_MOST_MEMORY}")
        return database

    def _move(self) -> None:
        self._temporary = tempfile.TemporaryDirectory()
        self._path = Path(self._temporary.name) / FILE

    def _discard(self) -> bool:
        try:
            # With SQLite's rollback journal, which would be applied to the new file.
            for path in (self._path, self._path.with_name(FILE + "-journal")):
                path.unlink(missing_ok=True)
        except OSError:
            return False
        return True

    def _make(self) -> None:
        with self._changing():
            self._check()

    def _refresh(self) -> None:
        self._make()
        paths = files_of(self._directory, self._skipped)
        present = {path.relative_to(self._directory).as_posix(): path for path in paths}
        known = {row["path"]: row["id"] for row in self._database.execute("SELECT path, id FROM files").fetchall()}
        for name in known.keys() - present.keys():
            with self._changing():
                self._forget(known[name])
        for name, path in present.items():
            with contextlib.suppress(FileNotFoundError):  # archived since it was listed; the next refresh adds it
                while not self._update(name, path):
                    pass
        for name, bad, problem in self._database.execute("SELECT path, bad, problem FROM files WHERE bad").fetchall():
            self._skipped.log(self._directory / name, no_records(bad, problem))
        torn = "SELECT path FROM files WHERE indexed < size AND path LIKE ?"
        for (name,) in self._database.execute(torn, [f"%{JOURNAL_SUFFIX}"]).fetchall():
            self._skipped.log(self._directory / name, "its last line is being written, or its writer was killed")

    def _check(self) -> None:
        """Make the tables of a new index. Raises DatabaseError where the file is torn or of another version.

        Within a transaction, in which no other process changes the file.
        """
        length = self._path.stat().st_size
        if length == 0:
            for statement in filter(str.strip, _TABLES.split(";")):
                self._database.execute(statement)
            self._database.execute(f"PRAGMA user_version = {VERSION}")
            return
        version, pages, size = (
            self._database.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("user_version", "page_count", "page_size")
        )
        if length < pages * size or version != VERSION:
            raise sqlite3.DatabaseError(f"version {version}, {length} bytes of {pages * size}")

    def _update(self, name: str, path: Path) -> bool:
        """Add the entries of a file that are not there yet; False where another process did so at the same time."""
        # Before its content: what is written meanwhile changes these again, and the next refresh reads on.
        status = path.stat()
        is_archive = path.name.endswith(ARCHIVE_SUFFIX)
        with self._changing():
            known = self._database.execute("SELECT * FROM files WHERE path = ?", [name]).fetchone()
            if known is not None and (known["size"], known["changed"]) == (status.st_size, status.st_mtime_ns):
                return True
            # An archive is written as a whole. A journal only grows, so a smaller one is another file of the same name.
            if known is None or is_archive or known["size"] > status.st_size:
                self._forget(known["id"] if known is not None else None)
                self._database.execute("INSERT INTO files VALUES (NULL, ?, -1, -1, 0, 0, NULL)", [name])
            file, begin = self._database.execute("SELECT id, indexed FROM files WHERE path = ?", [name]).fetchone()
        rows: list[tuple[Any, ...]] = []
        problems: list[str] = []
        end = begin
        for place, end, entry in self._archived(path) if is_archive else _written(path, begin):
            if isinstance(entry, NotARecord):
                problems.append(str(entry))
            else:
                rows.append((file, place, *(entry[column] for column in COLUMNS)))
            if len(rows) >= _COMMIT_ROWS:
                # Without size and time of change, which come with the last rows: a refresh that is cut off here goes on
                # from `end`.
                if not self._add(file, rows, problems, begin, end, (-1, -1)):
                    return False
                rows, problems, begin = [], [], end
        return self._add(file, rows, problems, begin, end, (status.st_size, status.st_mtime_ns))

    def _add(
        self,
        file: int,
        rows: list[tuple[Any, ...]],
        problems: list[str],
        begin: int,
        end: int,
        seen: tuple[int, int],
    ) -> bool:
        with self._changing():
            # Another process may have added the same rows since `begin` was read. Then `indexed` has moved on, this
            # updates no row, and nothing is added twice.
            changed = self._database.execute(
                """UPDATE files SET size = ?, changed = ?, indexed = ?, bad = bad + ?, problem = coalesce(problem, ?)
                WHERE id = ? AND indexed = ?""",
                [*seen, end, len(problems), problems[0] if problems else None, file, begin],
            )
            if changed.rowcount:
                self._database.executemany(_INSERT, rows)
            return bool(changed.rowcount)

    def _archived(self, path: Path) -> Iterator[tuple[int, int, Entry | NotARecord]]:
        """As `_written`, for an archive, which may have the entries as well."""
        try:
            found = archived(path).entries()
            yield from _written(path, 0) if found is None else ((place, place + 1, entry) for place, entry in found)
        except TornArchive as error:
            self._skipped.log(path, error)

    def _forget(self, file: int | None) -> None:
        self._database.execute("DELETE FROM trajectories WHERE file = ?", [file])
        self._database.execute("DELETE FROM files WHERE id = ?", [file])

    @contextlib.contextmanager
    def _changing(self) -> Generator[None]:
        """A transaction that no other process changes the index in."""
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._database.execute("COMMIT")
        except BaseException:  # cleanup, also on Ctrl-C: the next transaction needs the end of this one
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise


def _is_torn(error: sqlite3.DatabaseError) -> bool:
    name = getattr(error, "sqlite_errorname", "SQLITE_CORRUPT")
    return name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_IOERR"))


def _written(path: Path, begin: int) -> Iterator[tuple[int, int, Entry | NotARecord]]:
    """The place of each complete line, the next one's, and the entry, or why the line has none."""
    for place, line in lines_of(path, begin):
        if not line.endswith(b"\n"):
            return  # being written, or its writer was killed; the next refresh adds it
        try:
            entry = entry_of(from_json(line, where=f"{path}:{place}"))
        except NotARecord as error:
            entry = error
        yield place, place + len(line), entry
