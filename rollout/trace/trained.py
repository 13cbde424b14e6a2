# pyright: basic
# pyarrow ships no types.
"""Per-token values that a trainer computed, in Parquet files beside the traces: one per step, in `trained/`.

A file appears whole or not at all, so a process that is killed loses the step being written, and readers never see a
partial file. Numbers are stored only for the tokens that were trained on.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mcp_rollout.gateway.private_files import make_private, private, replacing
from mcp_rollout.rollout.trace.files import Skipped
from mcp_rollout.rollout.trace.trained_segment import DIRECTORY, SUFFIX, TrainedSegment, trained_files

_REALS = ("sampled_logprobs", "trainer_logprobs", "advantages", "entropy")
_NUMBERS = {**dict.fromkeys(_REALS, pa.float32()), "versions": pa.int32()}
_SCHEMA = pa.schema(
    [
        pa.field("trace", pa.string(), nullable=False),
        pa.field("segment", pa.int32(), nullable=False),
        pa.field("step", pa.int64(), nullable=False),
        pa.field("uid", pa.string(), nullable=False),
        pa.field("sample", pa.int32(), nullable=False),
        pa.field("output", pa.int32(), nullable=False),
        pa.field("dropped", pa.string()),
        pa.field("ids_digest", pa.binary()),
        pa.field("mask", pa.list_(pa.bool_())),
        *(pa.field(name, pa.list_(kind)) for name, kind in _NUMBERS.items()),
    ]
)

_OPTIONS: dict[str, Any] = {
    "compression": "zstd",
    "use_dictionary": ["uid"],
    # Bytes of floats compress better apart: the exponents of log-probabilities are much alike.
    "use_byte_stream_split": [f"{name}.list.element" for name in _REALS],
}


def write_trained(directory: str | Path, step: int, segments: Iterable[TrainedSegment]) -> Path:
    """Write the segments of one step to a new file.

    Args:
        directory: the directory of the traces.
        segments: the samples that were trained on or dropped, with lists or float32 arrays.

    Returns:
        The file. A step that is trained again after a resume gets another file, which sorts behind the first.

    Raises:
        OSError: the file cannot be written.
    """
    target = Path(directory) / DIRECTORY / f"{step:08d}-{time.time_ns()}{SUFFIX}"
    make_private(target.parent)
    rows = list(segments)
    columns: dict[str, Any] = {name: [getattr(row, name) for row in rows] for name in _SCHEMA.names}
    masks = [pa.array(row.mask, pa.bool_()) for row in rows]
    for name, kind in _NUMBERS.items():
        columns[name] = _trained(columns[name], masks, kind)
    with replacing(target) as partial, open(partial, "wb", opener=private) as file:
        pq.write_table(pa.table(columns, schema=_SCHEMA), file, **_OPTIONS)
    return target


def _trained(
    rows: Sequence[Sequence[float] | None], masks: Sequence[pa.BooleanArray], kind: pa.DataType
) -> pa.ListArray:
    """The values of each row at the tokens in its mask; null for a row without values."""
    kept, ends, missing = [pa.array([], kind)], [0], []
    for values, mask in zip(rows, masks, strict=True):
        missing.append(values is None or not len(mask))
        if not missing[-1]:
            # Only where the loss is: of a long context, most tokens are masked.
            kept.append(pa.array(values, kind).filter(mask))
        ends.append(ends[-1] + (0 if missing[-1] else len(kept[-1])))
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.concat_arrays(kept), mask=pa.array(missing))


def read_trained(
    directory: str | Path,
    *,
    trace: str | Collection[str] | None = None,
    step: int | None = None,
    skipped: Skipped | None = None,
) -> Iterator[TrainedSegment]:
    """Read what was computed on the segments of traces in a directory, by step and then by time of writing.

    A file that cannot be read is logged and skipped.

    Args:
        directory: of the traces.
        trace: id of the only trace to read, or several ids; None reads all.
        step: the only step to read, which is one file; None reads all.
        skipped: logs what cannot be read; one of its own by default.
    """
    skipped = skipped or Skipped()
    wanted = [trace] if isinstance(trace, str) else None if trace is None else sorted(trace)
    for path in trained_files(directory, step):
        try:
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(batch_size=64):
                    rows = batch if wanted is None else batch.filter(pc.field("trace").isin(wanted))
                    yield from map(_segment, rows.to_pylist())
        except (OSError, pa.ArrowInvalid) as error:
            _skip(path, error, skipped)


def _skip(path: Path, error: Exception, skipped: Skipped) -> None:
    skipped.log(path, f"is not a record of a training step: {error}")


def _segment(row: dict[str, Any]) -> TrainedSegment:
    fields: dict[str, Any] = {**row, "mask": row["mask"] or []}
    for name in _NUMBERS:
        if fields.get(name) is None:
            fields.pop(name, None)
        else:
            fields[name] = _aligned(fields[name], fields["mask"], 0 if name == "versions" else 0.0)
    return TrainedSegment(**fields)


def _aligned(values: list[float], mask: list[bool], masked: float) -> list[float]:
    trained = iter(values)
    return [next(trained) if is_in_loss else masked for is_in_loss in mask]
