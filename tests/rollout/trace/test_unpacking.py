"""A Parquet file that unpacks to far more than its size is refused wherever it is read."""

from __future__ import annotations

import struct
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from memory import peak_growth
from structlog.testing import capture_logs
from trace_samples import archived, recorded_trace

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.rollout.environment.parquet import read_rows
from mcp_rollout.rollout.trace.files import TornArchive
from mcp_rollout.rollout.trace.lines import lines_of
from mcp_rollout.rollout.trace.reader import Traces
from mcp_rollout.rollout.trace.store import read_traces

MIB = 1 << 20


def repeated(value: str, times: int) -> pa.Table:
    """One text in every row, of which the file has it once."""
    column = pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), times), [value])
    return pa.table({"prompt": column})


def written(path: Path, table: pa.Table) -> Path:
    # Without Arrow's schema, in which the column is a dictionary: readers are to see texts.
    pq.write_table(
        table,
        path,
        compression="zstd",
        store_schema=False,
        write_statistics=False,
        row_group_size=1 << 23,
        max_rows_per_page=1 << 23,
    )
    return path


@pytest.mark.parametrize(
    ("value", "times"),
    [
        ("x" * 1000, 4_000_000),
        pytest.param("x" * 60_000_000, 70, marks=pytest.mark.full),
        pytest.param("x" * 200_000, 20_000, marks=pytest.mark.full),
    ],
)
def test_rows_that_unpack_to_gigabytes_are_refused(value: str, times: int, tmp_path: Path) -> None:
    table = repeated(value, times)
    path = written(tmp_path / "rows.parquet", table)
    assert path.stat().st_size < 10_000 and len(value) * times >= 4_000_000_000
    with peak_growth() as growth, pytest.raises(ConfigError, match="unpacks to far more than its size"):
        for _ in read_rows(path):
            pass
    assert growth() < 500 * MIB


def test_an_archive_that_unpacks_to_gigabytes_is_left_out(tmp_path: Path) -> None:
    path = archived(tmp_path, "a", [recorded_trace()])
    content = path.read_bytes()
    begin, end = len(content) - 9 - 2 * 8, len(content) - 9 - 8  # of the table, the frame of lines
    packed, _ = struct.unpack("<II", content[begin:end])
    path.write_bytes(content[:begin] + struct.pack("<II", packed, (1 << 30) + 1) + content[end:])
    archived(tmp_path, "b", [recorded_trace("whole")] * 3)
    with peak_growth() as growth, capture_logs() as logs, Traces(tmp_path) as traces:
        assert traces.count() == 3
    (skipped,) = [line for line in logs if line["event"] == "skipped"]
    assert skipped["file"] == str(path) and "unpacks to far more" in skipped["problem"] and growth() < 500 * MIB


def test_a_frame_that_unpacks_to_more_than_it_says_is_refused(tmp_path: Path) -> None:
    path = archived(tmp_path, "a", [recorded_trace()])
    frame = pa.Codec("zstd").compress(bytes(1 << 30), asbytes=True)
    content = path.read_bytes()
    begin, end = len(content) - 9 - 2 * 8, len(content) - 9 - 8
    packed, size = struct.unpack("<II", content[begin:end])
    table = struct.pack("<II", len(frame), size)
    path.write_bytes(frame + content[packed:begin] + table + content[end:])
    with peak_growth() as growth, pytest.raises(TornArchive, match="has a damaged part"):
        list(lines_of(path))
    assert growth() < 500 * MIB


def test_records_behind_a_damaged_frame_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_rollout.rollout.trace.archive._FRAME", 1)
    path = archived(tmp_path, "a", [recorded_trace(name) for name in ("one", "two", "three")])
    content = bytearray(path.read_bytes())
    (first, _), (second, _) = struct.iter_unpack("<II", content[len(content) - 9 - 4 * 8 :][:16])
    content[first : first + second] = bytes(second)
    path.write_bytes(content)
    assert [trace.id for trace in read_traces(tmp_path)] == ["one", "three"]


def test_rows_that_compress_well_are_read(tmp_path: Path) -> None:
    path = written(tmp_path / "rows.parquet", repeated("The same system prompt in every row. " * 20, 50_000))
    assert sum(1 for _ in read_rows(path)) == 50_000
