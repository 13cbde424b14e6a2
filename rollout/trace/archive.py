# pyright: basic
# pyarrow ships no types.
"""Archived journals: Parquet files in the layout of `rollout.trace.columns`.

    python -m rollout.trace.archive JOURNAL

archives one journal, in a separate process so that the rollout's event loop goes on. The archive appears whole or not
at all, and the journal is removed only after it is on disk: at every moment one of them has the records.
"""

from __future__ import annotations

import os
import sys
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import structlog

from gateway.errors import ConfigError
from gateway.private_files import private
from rollout.extras import UnpacksTooFar, batches_within
from rollout.trace.archive_records import records_of
from rollout.trace.archive_rows import row_of
from rollout.trace.columns import FORMAT_VERSION, LATER, VERSION_KEY, encodings, schema
from rollout.trace.files import TornArchive, archive_of
from rollout.trace.journal import NotARecord, from_json, from_record, lines_of
from rollout.trace.record import Trace

log = structlog.get_logger(__name__)

_BATCH_TOKENS = 200_000
"""Tokens that are held as Python objects at a time: about 30 MB with their texts."""
_GROUP_BYTES = 32 * 2**20
"""Size of a row group in memory: the unit of reading."""
_READ_ROWS = 64
_SHORT_ROWS = 512
"""Rows without ids and results, that are read at a time."""


def archive(journal: Path) -> Path:
    """Replace a journal by its archive and return that. A line that is not a record is logged and left out.

    Raises:
        OSError: the archive cannot be written; the journal stays.
        ConfigError: a record is of another version; the journal stays.
    """
    path = archive_of(journal)
    write_archive(path, _records(journal))
    journal.unlink()
    return path


def write_archive(path: Path, traces: Iterable[Trace]) -> int:
    """Write traces to a file that appears whole or not at all; returns their number.

    Raises:
        OSError: the file cannot be written.
    """
    partial = path.with_name(path.name + ".partial")
    rows = 0
    with open(partial, "wb", opener=private) as file, pq.ParquetWriter(file, schema(), **encodings()) as writer:
        group: list[pa.RecordBatch] = []
        for batch in _batches(traces):
            group.append(batch)
            rows += batch.num_rows
            if sum(each.nbytes for each in group) >= _GROUP_BYTES:
                writer.write_table(pa.Table.from_batches(group))
                group = []
        writer.write_table(pa.Table.from_batches(group, schema=schema()))
    # The content before the name, and the name before the journal is removed: a crash at any point leaves one of them
    # whole.
    _synchronise(partial)
    partial.replace(path)
    _synchronise(path.parent)
    return rows


def read_archive(path: Path) -> Iterator[Trace]:
    """Read the traces of an archive, in the order of writing.

    Raises:
        TornArchive: the file is not a whole archive.
        OSError: the file cannot be read.
    """
    with _opened(path) as file:
        for batch in _batches_of(file, path, batch_size=_READ_ROWS):
            yield from _traces(batch, path)


class ArchiveReader:
    """Reads single rows of an archive. Rows in order cost one pass, since the last row group is kept.

    Raises:
        TornArchive: the file is not a whole archive.
        OSError: the file cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with _opened(path) as file:
            counts = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
        self._starts = [0, *accumulate(counts)]
        self._group = -1
        self._rows: pa.Table | None = None

    def read(self, number: int) -> Trace:
        """Read the trace of a row, counted from 0. Raises TornArchive also where there is no such row."""
        group = bisect_right(self._starts, number) - 1
        if not 0 <= group < len(self._starts) - 1:
            raise TornArchive(f"has no row {number}", file=self.path)
        rows = self._rows
        if group != self._group or rows is None:
            with _opened(self.path) as file:
                parts = list(_batches_of(file, self.path, row_groups=[group], batch_size=_READ_ROWS))
                self._rows = rows = pa.Table.from_batches(parts, file.schema_arrow)
            self._group = group
        (batch,) = rows.slice(number - self._starts[group], 1).combine_chunks().to_batches()
        return next(_traces(batch, self.path))


def _opened(path: Path) -> pq.ParquetFile:
    """Open an archive. Raises as `read_archive`."""
    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        # It was there when it was listed: the caller looks for what has taken its place.
        if not path.exists():
            raise
        raise TornArchive(f"is not a whole archive: {error}", file=path, remedy="copy it again") from error
    version = int((file.schema_arrow.metadata or {}).get(VERSION_KEY, b"0"))
    if version != FORMAT_VERSION:
        file.close()
        raise ConfigError(f"trace archive of version {version}, this program reads {FORMAT_VERSION}", file=path)
    if lacking := [name for name in schema().names if name not in {*file.schema_arrow.names, *LATER}]:
        file.close()
        raise TornArchive(f"lacks the columns {', '.join(lacking)}", file=path)
    return file


def rows_of(path: Path, columns: list[str]) -> Iterator[dict[str, Any]]:
    """The rows of an archive in order, with these columns only. Raises as `read_archive`."""
    with _opened(path) as file:
        for batch in _batches_of(file, path, batch_size=_SHORT_ROWS, columns=columns):
            yield from batch.to_pylist()


def _batches_of(file: Any, path: Path, **chosen: Any) -> Iterator[Any]:
    """`file.iter_batches`; raises TornArchive where a part behind a whole footer is damaged, or unpacks too far."""
    batches = batches_within(file, path.stat().st_size, **chosen)
    while True:
        try:
            batch = next(batches, None)
        except (pa.ArrowException, OSError, UnpacksTooFar) as error:
            raise TornArchive(f"has a damaged part: {error}", file=path) from error
        if batch is None:
            return
        yield batch


def _traces(batch: pa.RecordBatch, path: Path) -> Iterator[Trace]:
    yield from (from_record(record, where=str(path)) for record in records_of(batch))


def _batches(traces: Iterable[Trace]) -> Iterator[pa.RecordBatch]:
    rows, tokens = [], 0
    for trace in traces:
        rows.append(row_of(trace))
        tokens += rows[-1]["tokens"]
        if tokens >= _BATCH_TOKENS:
            yield pa.RecordBatch.from_pylist(rows, schema=schema())
            rows, tokens = [], 0
    if rows:
        yield pa.RecordBatch.from_pylist(rows, schema=schema())


def _records(journal: Path) -> Iterator[Trace]:
    for position, line in lines_of(journal):
        try:
            yield from_json(line, where=f"{journal}:{position}")
        except NotARecord as error:
            log.warning("not a record, left out of the archive", problem=str(error))


def _synchronise(path: Path) -> None:
    """Wait until a file, or a directory's entries, are on disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def main(journal: str) -> int:
    """Archive one journal with one thread; returns the exit status."""
    # A rollout goes on beside it, and archives only have to keep up with it.
    pa.set_cpu_count(1)
    try:
        archive(Path(journal))
    except (OSError, ConfigError, pa.ArrowException, OverflowError) as error:
        log.warning("journal not archived", journal=journal, problem=str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
