# pyright: basic
# pyarrow ships no types.
"""A journal that grew large, as a Parquet file: columns to select by, and each record whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rollout.trace.record import Trace

SUFFIX = ".traces.parquet"
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("environment", pa.string()),
        ("task", pa.string()),
        ("row", pa.int64()),
        ("sample", pa.int64()),
        ("step", pa.int64()),
        ("validate", pa.bool_()),
        ("score", pa.float64()),
        ("stop_reason", pa.string()),
        ("failure", pa.string()),
        ("turns", pa.int64()),
        ("record", pa.large_string()),
    ]
)
_GROUP = 256
"""Records that are in memory at a time."""


def write_sealed(path: Path, records: Iterable[tuple[Trace, str]]) -> None:
    """Write traces beside their lines of JSON; the file appears whole or not at all.

    Raises:
        OSError: the file cannot be written.
    """
    partial = path.with_name(path.name + ".partial")
    remaining = iter(records)
    with pq.ParquetWriter(partial, SCHEMA, compression="zstd") as writer:
        while group := list(islice(remaining, _GROUP)):
            writer.write_table(pa.Table.from_pylist([_row(trace, line) for trace, line in group], schema=SCHEMA))
    partial.replace(path)


def sealed_records(path: Path) -> Iterator[str]:
    """Each trace's line of JSON, in the order of writing."""
    with pq.ParquetFile(path) as file:
        for group in file.iter_batches(batch_size=_GROUP, columns=["record"]):
            yield from group.column(0).to_pylist()


def _row(trace: Trace, line: str) -> dict[str, Any]:
    return {
        "id": trace.id,
        "environment": trace.task.environment,
        "task": trace.task.task,
        "row": trace.origin.row,
        "sample": trace.origin.sample,
        "step": trace.origin.step,
        "validate": trace.origin.validate_,
        "score": trace.reward.score if trace.reward else None,
        "stop_reason": trace.stop_reason,
        "failure": trace.failure.kind if trace.failure else None,
        "turns": len(trace.turns),
        "record": line,
    }
