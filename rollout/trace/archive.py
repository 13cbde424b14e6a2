# pyright: basic
# pyarrow ships no types.
"""Archived segments of the trace journal: Parquet files with columns to select by and each whole record as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from rollout.trace.record import Trace

SUFFIX = ".traces.parquet"
_COLUMNS = {
    "id": (pa.string(), lambda trace: trace.id),
    "environment": (pa.string(), lambda trace: trace.task.environment),
    "task": (pa.string(), lambda trace: trace.task.task),
    "row": (pa.int64(), lambda trace: trace.origin.row),
    "sample": (pa.int64(), lambda trace: trace.origin.sample),
    "step": (pa.int64(), lambda trace: trace.origin.step),
    "validate": (pa.bool_(), lambda trace: trace.origin.validate_),
    "score": (pa.float64(), lambda trace: trace.reward.score if trace.reward else None),
    "stop_reason": (pa.string(), lambda trace: trace.stop_reason),
    "failure": (pa.string(), lambda trace: trace.failure.kind if trace.failure else None),
    "turns": (pa.int64(), lambda trace: len(trace.turns)),
}
"""Type and value of each column to select by."""
_SCHEMA = pa.schema([*((name, kind) for name, (kind, _) in _COLUMNS.items()), ("record", pa.large_string())])
_GROUP = 256
"""Number of records in memory at a time."""


def write_archive(path: Path, records: Iterable[tuple[Trace, str]]) -> None:
    """Write traces with their lines of JSON; the file appears whole or not at all.

    Args:
        path: the file to write; its name ends with `SUFFIX`.
        records: each trace with its line of JSON.

    Raises:
        OSError: the file cannot be written.
    """
    partial = path.with_name(path.name + ".partial")
    remaining = iter(records)
    with pq.ParquetWriter(partial, _SCHEMA, compression="zstd") as writer:
        while group := list(islice(remaining, _GROUP)):
            columns = {name: [read(trace) for trace, _ in group] for name, (_, read) in _COLUMNS.items()}
            columns["record"] = [line for _, line in group]
            writer.write_table(pa.table(columns, schema=_SCHEMA))
    partial.replace(path)


def archived_records(path: Path) -> Iterator[str]:
    """Read the line of JSON of each trace, in the order of writing."""
    with pq.ParquetFile(path) as file:
        for group in file.iter_batches(batch_size=_GROUP, columns=["record"]):
            yield from group.column(0).to_pylist()
