"""What is on disk is what was recorded."""

import asyncio
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pyarrow
import pytest
from structlog.testing import capture_logs
from trace_samples import read_file, recorded_trace

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.rollout.trace.archive import archive
from mcp_rollout.rollout.trace.files import archive_of
from mcp_rollout.rollout.trace.journal import from_json, to_json
from mcp_rollout.rollout.trace.reader import Traces
from mcp_rollout.rollout.trace.segment import packed
from mcp_rollout.rollout.trace.stats import statistics_of
from mcp_rollout.rollout.trace.store import TraceStore, read_traces


def test_a_trace_survives_the_disk(tmp_path: Path) -> None:
    store = TraceStore(tmp_path)
    store.append(recorded_trace())
    (read,) = read_traces(tmp_path)
    assert read == recorded_trace()


def test_the_record_is_readable_before_the_store_is_closed(tmp_path: Path) -> None:
    store = TraceStore(tmp_path)
    store.append(recorded_trace("a"))
    assert [trace.id for trace in read_traces(tmp_path)] == ["a"]
    store.append(recorded_trace("b"))
    assert [trace.id for trace in read_traces(tmp_path)] == ["a", "b"]


def test_half_a_last_record_is_skipped_and_said(tmp_path: Path) -> None:
    store = TraceStore(tmp_path)
    store.append(recorded_trace())
    (journal,) = tmp_path.glob("*.jsonl")
    whole = journal.read_bytes()
    journal.write_bytes(whole + whole[: len(whole) // 2])
    with capture_logs() as logs:
        assert len(list(read_traces(tmp_path))) == 1
    assert [entry["event"] for entry in logs] == ["skipped"]


def test_what_is_not_a_file_is_skipped_and_said(tmp_path: Path) -> None:
    TraceStore(tmp_path).append(recorded_trace())
    (tmp_path / "directory.jsonl").mkdir()
    (tmp_path / "directory.jsonl.zst").mkdir()
    os.mkfifo(tmp_path / "pipe.jsonl")  # opening it would wait for a writer
    with capture_logs() as logs:
        assert len(list(read_traces(tmp_path))) == 1
        with Traces(tmp_path) as traces:
            assert len(list(traces.entries())) == 1
    assert {Path(entry["file"]).name for entry in logs} == {"directory.jsonl", "directory.jsonl.zst", "pipe.jsonl"}


def test_a_large_journal_is_archived_and_read_like_any_other(tmp_path: Path) -> None:
    names = [f"{index:03d}" for index in range(40)]
    store = TraceStore(tmp_path, archive_bytes=30_000)
    for name in names:
        store.append(recorded_trace(name))
    assert list(read_traces(tmp_path)) == [recorded_trace(name) for name in names]  # also while it is being archived
    store.wait_for_archives()
    archives, journals = sorted(tmp_path.glob("*.jsonl.zst")), list(tmp_path.glob("*.jsonl"))
    assert len(archives) == 2 and len(journals) == 1
    assert list(read_traces(tmp_path)) == [recorded_trace(name) for name in names]
    with pyarrow.input_stream(archives[0], compression="zstd") as lines:  # as any program that reads zstd
        assert [from_json(line).id for line in lines.read().splitlines()] == names[: len(read_file(archives[0]))]


def test_a_journal_that_cannot_be_archived_stays(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    store = TraceStore(tmp_path, archive_bytes=10_000)
    store.append(recorded_trace("a"))
    (journal,) = tmp_path.iterdir()
    archive_of(journal).with_name(archive_of(journal).name + ".partial").mkdir()  # in the way
    store.append(recorded_trace("b" * 10_000))
    store.append(recorded_trace("c"))
    store.wait_for_archives()
    assert [trace.id[0] for trace in read_traces(tmp_path)] == list("abc")
    assert "journal not archived" in capfd.readouterr().err
    assert len(list(tmp_path.glob("*.jsonl"))) == 2


def test_a_line_that_is_no_record_does_not_hide_the_others(tmp_path: Path) -> None:
    store = TraceStore(tmp_path)
    store.append(recorded_trace("a"))
    (journal,) = tmp_path.glob("*.jsonl")
    journal.write_bytes(journal.read_bytes() + b'{"half": \n')
    store.append(recorded_trace("b"))
    with capture_logs():
        assert [trace.id for trace in read_traces(tmp_path)] == ["a", "b"]


def test_a_record_of_another_schema_is_refused_with_its_place() -> None:
    other = to_json(recorded_trace()).replace(b'"schema_version":4', b'"schema_version":99')
    with pytest.raises(ConfigError, match=r"x\.jsonl:1: trace schema 99"):
        from_json(other, where="x.jsonl:1")


def test_what_is_no_trace_is_refused_with_its_place_and_key() -> None:
    with pytest.raises(ConfigError, match=r"x\.jsonl:1: task: not a trace record"):
        from_json(b'{"id": "a"}', where="x.jsonl:1")


def _packed(*numbers: float) -> bytes:
    return json.dumps(packed(numbers)).encode()


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        (b'"elapsed_s":0.0,"schema', b'"elapsed_s":NaN,"schema', "elapsed_s"),
        (b'"score":0.75', b'"score":1e999', "reward.score"),
        (_packed(-0.5, -1.5), _packed(-0.5, -math.inf), "logprobs.1"),
        (_packed(-0.5, -1.5), b'["half"]', "logprobs"),
        (_packed(-0.5, -1.5), b"[-0.5,-1.5]", "logprobs"),
        (b'"generate_s":0.0', b'"generate_s":NaN', "turns.0.generate_s"),
        (b'"response_ids":[3,4]', b'"response_ids":[3,%d]' % 10**30, "response_ids.1"),
        (b'"loss_mask":[1,1]', b'"loss_mask":[1,300]', "loss_mask.1"),
        (b'"step":7', b'"step":%d' % 10**30, "origin.step"),
    ],
)
def test_a_record_with_a_number_that_no_archive_can_hold_is_skipped_and_said(
    tmp_path: Path, old: bytes, new: bytes, key: str
) -> None:
    store = TraceStore(tmp_path / "traces")
    for name in ("a", "b"):
        store.append(recorded_trace(name))
    (journal,) = store.directory.glob("*.jsonl")
    assert journal.read_bytes().count(old) == 2
    journal.write_bytes(journal.read_bytes().replace(old, new, 1))
    with capture_logs() as logs:
        assert [trace.id for trace in read_traces(store.directory)] == ["b"]
        with Traces(store.directory) as traces:
            assert statistics_of(traces.entries()).trajectories == 1
    assert all(f"{key}: not a trace record" in entry["problem"] for entry in logs) and len(logs) == 2
    with capture_logs():
        assert [trace.id for trace in read_traces(archive(journal).parent)] == ["b"]


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="trace_dir: cannot write traces"):
        TraceStore(tmp_path / "file" / "traces").append(recorded_trace())
    with pytest.raises(ConfigError, match=r"--out: cannot write traces: .* \(name a directory"):
        TraceStore(tmp_path / "file" / "traces", key="--out").check()


FULL = """
import resource, signal, sys
from mcp_rollout.rollout.trace.store import TraceStore
from trace_samples import read_file, recorded_trace
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = TraceStore(sys.argv[1])
for name in "ab":
    store.append(recorded_trace(name))
size = next(store.directory.iterdir()).stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, size + 1_000_000))
try:
    store.append(recorded_trace("c"))
except Exception as error:
    print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 1_000_000, size + 1_000_000))
store.append(recorded_trace("d"))
"""


def test_a_record_that_the_disk_had_no_room_for_leaves_nothing_behind(tmp_path: Path) -> None:
    path = os.pathsep.join(sys.path)
    command = [sys.executable, "-c", FULL, tmp_path]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, timeout=60, capture_output=True, check=True)
    assert b"the disk is full" in done.stdout
    with capture_logs() as logs:
        assert [trace.id for trace in read_traces(tmp_path)] == ["a", "b", "d"] and logs == []


@pytest.mark.anyio
async def test_a_large_record_is_whole_though_its_task_is_cancelled_while_it_is_written(tmp_path: Path) -> None:
    """As AReaL cancels its tasks with its engine, which no scope shields from."""
    trace, store = recorded_trace(), TraceStore(tmp_path)
    trace.prompt_ids = list(range(300_000))
    writing = asyncio.create_task(store.write(trace))
    await asyncio.sleep(0)  # it has begun
    assert not writing.done() and not os.listdir(tmp_path)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert [each.prompt_ids for each in read_traces(tmp_path)] == [trace.prompt_ids]
