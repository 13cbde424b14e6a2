# pyright: basic
# pyarrow ships no types.
"""Per-token values that a trainer computed, in Parquet files beside the traces: one per step, in `trained/`.

A file appears whole or not at all, so a process that is killed loses the step being written, and readers never see a
partial file. Numbers are stored only for the tokens that were trained on.
"""

from __future__ import annotations

import hashlib
import math
import time
from array import array
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gateway.private_files import make_private, private, replacing
from rollout.trace.files import Skipped

DIRECTORY = "trained"
SUFFIX = ".trained.parquet"
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


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainedSegment:
    """One training sample: a segment of a trace, and what the trainer computed on the tokens of its response.

    All sequences have a value for each token of the segment's response, 0.0 where it was not trained on.
    """

    trace: str
    """Id of the trace."""
    segment: int
    """Number of the segment in the trace: 0 is the first of `earlier`, and the last one is the trace's own."""
    step: int
    uid: str
    """verl's group; with `sample` and `output` the sample's key in TransferQueue, `{uid}_{sample}_{output}`."""
    sample: int
    output: int
    dropped: str | None = None
    """Why the sample was not trained on (`filtered`, `surplus`, `stale`, `failed`, `small_group`); no numbers then."""
    ids_digest: bytes | None = None
    """`digest` of the ids that were trained on."""
    mask: Sequence[bool] = ()
    """Whether the token is in the loss, as the trainer had it: rollout correction may reject tokens of the trace's."""
    sampled_logprobs: Sequence[float] | None = None
    """Log-probability of the token where it was sampled; None if the engine reported none."""
    trainer_logprobs: Sequence[float] = ()
    """Log-probability that the trainer computed before its update (verl's `old_log_probs`; the sampled one under
    `bypass_mode`)."""
    advantages: Sequence[float] = ()
    """Advantage times mask: positive where the update makes the token more probable."""
    entropy: Sequence[float] | None = None
    """Entropy of the trainer's distribution, in nats; None under `bypass_mode`, which computes none."""
    versions: Sequence[int] | None = None
    """The trainer's step of the weights that sampled the token, -1 if it is unknown; 0 where it was not trained on."""

    @property
    def ratios(self) -> list[float] | None:
        """exp(trainer's minus sampled log-probability): 1.0 where trainer and engine agree."""
        if self.sampled_logprobs is None:
            return None
        pairs = zip(self.mask, self.trainer_logprobs, self.sampled_logprobs, strict=True)
        return [math.exp(trainer - sampled) if is_in_loss else 0.0 for is_in_loss, trainer, sampled in pairs]


def digest(prompt_ids: Sequence[int], response_ids: Sequence[int]) -> bytes:
    """Digest of a sample's ids, by which a reader verifies that a segment is the one that was trained on.

    Args:
        prompt_ids: ids, or an int64 array of them.
        response_ids: the same.
    """
    hashed = hashlib.blake2b(len(prompt_ids).to_bytes(8, "little"), digest_size=8)
    sequences: tuple[Any, Any] = (prompt_ids, response_ids)
    for ids in sequences:
        hashed.update(ids.tobytes() if hasattr(ids, "tobytes") else array("q", ids).tobytes())
    return hashed.digest()


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
    for path in _files(directory, step):
        try:
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(batch_size=64):
                    rows = batch if wanted is None else batch.filter(pc.field("trace").isin(wanted))
                    yield from map(_segment, rows.to_pylist())
        except (OSError, pa.ArrowInvalid) as error:
            _skip(path, error, skipped)


def export_trained(directories: Iterable[str | Path], path: Path, *, traces: Collection[str]) -> int:
    """Write what was computed on the segments of these traces as one file, which appears whole or not at all.

    Args:
        directories: of the traces.
        path: the file to write; where there is nothing to write, none is written.
        traces: ids.

    Returns:
        The number of rows.

    Raises:
        OSError: the file cannot be written.
    """
    partial, rows, skipped = path.with_name(path.name + ".partial"), 0, Skipped()
    chosen = pc.field("trace").isin(pa.array(traces, pa.string()))
    with open(partial, "wb", opener=private) as output, pq.ParquetWriter(output, _SCHEMA, **_OPTIONS) as writer:
        for source in (each for directory in directories for each in _files(directory)):
            try:
                with pq.ParquetFile(source) as file:
                    for batch in file.iter_batches(batch_size=256):
                        found = batch.filter(chosen)
                        if found.num_rows:
                            writer.write_batch(found.cast(_SCHEMA))
                        rows += found.num_rows
            except (OSError, ValueError) as error:  # Arrow's own among them, and columns of another version
                _skip(source, error, skipped)
    if rows:
        partial.replace(path)
    else:
        partial.unlink()
    return rows


def _files(directory: str | Path, step: int | None = None) -> list[Path]:
    begin = "" if step is None else f"{step:08d}-"
    return sorted((Path(directory) / DIRECTORY).glob(f"{begin}*{SUFFIX}"))


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
