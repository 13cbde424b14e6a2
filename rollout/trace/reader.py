"""Reading a directory of traces: entries by filter and order from the index, records one at a time."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.rollout.extras import parquet_needed
from mcp_rollout.rollout.trace.entries import COLUMNS, JSON_COLUMNS, Entry
from mcp_rollout.rollout.trace.files import ARCHIVE_SUFFIX, Skipped, TornArchive
from mcp_rollout.rollout.trace.index import Index
from mcp_rollout.rollout.trace.journal import from_json
from mcp_rollout.rollout.trace.lines import archived
from mcp_rollout.rollout.trace.record import Trace
from mcp_rollout.rollout.trace.trained_segment import TrainedSegment, trained_files

_FLAGS = ("validate", "withdrawn")
_PLACE = ("file", "place")


class Traces:
    """The traces of a directory and its sub-directories. Use as a context manager.

    Example:
        with Traces("outputs/eval") as traces:
            for entry in traces.entries(where="reward < 0.5 and environment = 'retail'", sort=["-turns"]):
                trace = traces.read(entry)

    Args:
        directory: of the traces; a run may be writing there.

    Raises:
        ConfigError: there is no such directory.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        check_directory(self.directory)
        self.skipped = Skipped()
        """Logs files that cannot be read."""
        self._open(Index(self.directory, skipped=self.skipped))

    def _open(self, index: Index) -> None:
        self._index = index
        self._archive: Any = None  # an Archive

    def __enter__(self) -> Self:
        self.refresh()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def beside(self, *, query_timeout_s: float) -> Traces:
        """A second reader of the same index, for another thread. It does not bring the index up to date.

        Call it in the thread that uses the second one.

        Args:
            query_timeout_s: seconds after which a query raises ConfigError.
        """
        other = object.__new__(type(self))
        other.directory, other.skipped = self.directory, self.skipped
        other._open(self._index.beside(query_timeout_s))
        return other

    def close(self) -> None:
        self._index.close()

    def prepare(self) -> None:
        """Make the tables of an index that is missing, torn or of another version, without reading traces."""
        self._index.prepare()

    def refresh(self) -> None:
        """Add what was written since the directory was opened.

        Raises:
            ConfigError: a record is of another version.
        """
        self._index.refresh()

    def entries(
        self,
        *,
        where: str | None = None,
        sort: Sequence[str] = (),
        columns: Sequence[str] | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> Iterator[Entry]:
        """The entries of trajectories, as dictionaries; they stream.

        Args:
            where: an SQL expression over the columns of `rollout.trace.entries.COLUMNS`.
            sort: columns to sort by, a leading `-` for descending; entries without a value come last. In the order of
                files and of writing by default.
            columns: all by default.
            limit: the most entries.
            offset: entries to leave out at the beginning; only with `limit`.

        Raises:
            ConfigError: `where` is not such an expression, or there is no such column.
        """
        order = [_ordered(name) for name in sort]
        shown = [_column(name) for name in columns or COLUMNS]
        # The place last, so that equal values have an order, and the pages of a list do not overlap.
        selected, ordered = ", ".join([*_PLACE, *shown]), f"ORDER BY {', '.join([*order, *_PLACE])}"
        rows = f"FROM trajectories {_where(where)}"
        if limit is not None:
            # Only the chosen rows are read whole: sorting whole rows takes nine times as long.
            chosen = f"SELECT rowid {rows} {ordered} LIMIT {int(limit)} OFFSET {int(offset)}"
            rows = f"FROM trajectories WHERE rowid IN ({chosen})"
        statement = f"SELECT {selected} {rows} {ordered}"
        for row in self.query(statement):
            yield _entry(row)

    def count(self, where: str | None = None) -> int:
        """The number of trajectories; raises as `entries`."""
        (row,) = self.query(f"SELECT count(*) FROM trajectories {_where(where)}")
        return int(row[0])

    def widths(self, columns: Sequence[str], where: str | None = None) -> list[int]:
        """The length of the longest text of each column; raises as `entries`."""
        longest = ", ".join(f"max(length({_column(name)}))" for name in columns)
        (row,) = self.query(f"SELECT {longest} FROM trajectories {_where(where)}")
        return [width or 0 for width in row]

    def read(self, entry: Entry) -> Trace:
        """Read the record of an entry.

        Raises:
            ConfigError: the file is gone or damaged.
        """
        try:
            return self._record(entry)
        except (FileNotFoundError, TornArchive):
            self._archive = None
            self.refresh()  # archived since the entry was read
        # Not by id alone: a rescored copy has the same id, and another run record.
        statement = "SELECT file, place, id FROM trajectories WHERE id = ? AND run = ? AND began_at = ?"
        again = next(self.query(statement, [entry["id"], entry["run"], entry["began_at"]]), None)
        if again is None:
            raise ConfigError("its file is gone", file=self.directory, key=entry["id"])
        return self._record(_entry(again))

    def home_of(self, entry: Entry) -> Path:
        """The directory that the entry's file is in, which has what a trainer computed on it."""
        return self._index.path_of(entry["file"]).parent

    def trained(self, entry: Entry) -> list[TrainedSegment]:
        """What a trainer computed on the trajectory's segments, by step; empty without a record of it."""
        home = self.home_of(entry)
        if not trained_files(home):
            return []
        with parquet_needed(str(home)):
            from mcp_rollout.rollout.trace.trained import read_trained
        return list(read_trained(home, trace=entry["id"], skipped=self.skipped))

    def traces(
        self, *, where: str | None = None, sort: Sequence[str] = (), limit: int | None = None
    ) -> Iterator[Trace]:
        """The records of trajectories, one at a time; as `entries`."""
        for entry in self.entries(where=where, sort=sort, columns=["id", "run", "began_at"], limit=limit):
            yield self.read(entry)

    def _record(self, entry: Entry) -> Trace:
        path, place = self._index.path_of(entry["file"]), entry["place"]
        if path.name.endswith(ARCHIVE_SUFFIX):
            if self._archive is None or self._archive.path != path:
                self._archive = archived(path)
            _, line = next(self._archive.lines(place), (place, b""))
            return from_json(line, where=f"{path}:{place}")
        with path.open("rb") as file:
            file.seek(place)
            return from_json(file.readline(), where=f"{path}:{place}")

    def query(self, statement: str, values: Sequence[Any] = ()) -> Iterator[sqlite3.Row]:
        """Run one SQL query over the index's tables `trajectories` and `files`; the rows stream.

        Raises:
            ConfigError: it is wrong, or would change the index.
        """
        try:
            yield from self._index.query(statement, values)
        except (sqlite3.Error, MemoryError) as error:
            remedy, problem = f"an SQL expression over {', '.join(COLUMNS)}", str(error) or "it takes too much memory"
            raise ConfigError(f"cannot be asked for: {problem}", key="where", remedy=remedy) from error


def check_directory(directory: Path) -> None:
    """Raise ConfigError where there is no such directory."""
    if not directory.is_dir():
        raise ConfigError("no such directory", file=directory, remedy="name the directory of the traces")


def _column(name: str, key: str = "columns") -> str:
    if name not in COLUMNS:
        raise ConfigError(f"there is no column {name!r}", key=key, remedy=f"one of {', '.join(COLUMNS)}")
    return f'"{name}"'


def _ordered(name: str) -> str:
    return f"{_column(name.lstrip('-'), 'sort')}{' DESC' if name.startswith('-') else ''} NULLS LAST"


def _where(expression: str | None) -> str:
    # The newline ends a comment (`--`) in the expression, which would swallow the bracket.
    return f"WHERE ({expression}\n)" if expression else ""


def _entry(row: sqlite3.Row) -> Entry:
    entry = dict(row)
    for name in entry.keys() & set(JSON_COLUMNS):
        entry[name] = json.loads(entry[name])
    for name in entry.keys() & set(_FLAGS):
        entry[name] = bool(entry[name])
    return entry
