"""Writers that are killed at random moments lose the record that they were writing at most; a reader never fails."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from trace_samples import recorded_trace

from mcp_rollout.rollout.trace.reader import Traces
from mcp_rollout.rollout.trace.store import TraceStore, read_traces
from mcp_rollout.rollout.trace.trained import read_trained

KILLS, RECORDS, SAMPLES = 40, 60, 20

# A signal that is not handled ends each child after a drawn time, as abruptly as SIGKILL and wherever it is then. After
# each unit that it has written the child says so.
PROGRAM = """
import os, signal, sys, time
from itertools import count
from pathlib import Path
from mcp_rollout.rollout.trace.archive import archive
from mcp_rollout.rollout.trace.index import Index
from mcp_rollout.rollout.trace.store import TraceStore
from mcp_rollout.rollout.trace.trained import write_trained
from mcp_rollout.rollout.trace.trained_segment import TrainedSegment
from mcp_rollout.rollout.trace import index
from trace_samples import recorded_trace

index._COMMIT_ROWS = 5
SEGMENT = dict(trace="a", segment=0, step=1, uid="u", sample=0, output=0, mask=[True] * 2000)
NUMBERS = dict.fromkeys(("sampled_logprobs", "trainer_logprobs", "advantages", "entropy"), [0.5] * 2000)

def journal(directory):
    store = TraceStore(directory)
    for number in count():
        store.append(recorded_trace(str(number)))
        yield

def archives(directory):
    (path,) = directory.glob("*.jsonl")
    archive(path)
    yield

def indexes(directory):
    Index(directory).refresh()
    yield

def side_file(directory):
    for step in count(1):
        write_trained(directory, step, [TrainedSegment(**SEGMENT, **NUMBERS)] * 20)
        yield

kind = globals()[sys.argv[1]]
for directory in sys.argv[2:4]:  # the first time is longer: pyarrow imports pandas then
    began = time.perf_counter()
    next(kind(Path(directory)))
    unit_s = time.perf_counter() - began
for directory, units in zip(sys.argv[4::2], sys.argv[5::2]):
    reading, writing = os.pipe()
    began = time.perf_counter()
    child = os.fork()
    if not child:
        signal.setitimer(signal.ITIMER_REAL, max(1e-6, float(units) * unit_s))
        for _ in kind(Path(directory)):
            os.write(writing, b".")
        os._exit(0)
    os.close(writing)
    said = 0
    while part := os.read(reading, 65536):
        said += len(part)
    os.close(reading)
    status = os.waitpid(child, 0)[1]
    if not status:  # it was done before its time, so that a unit was measured while the machine was busy
        unit_s = min(unit_s, time.perf_counter() - began)
    print(status, said, flush=True)
"""


def killed(kind: str, directories: list[Path], longest: float) -> list[int]:
    """How many units each child had written for certain; each was killed after a drawn time, or had finished.

    Args:
        directories: two in which nothing is killed, to know how long a unit takes, and one for each child.
        longest: the longest time, in units.
    """
    draw = random.Random(kind)
    given = [*directories[:2], *(str(each) for path in directories[2:] for each in (path, draw.uniform(0, longest)))]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", PROGRAM, kind, *given]
    done = subprocess.run(command, env=environment, timeout=100, capture_output=True, text=True, check=True)
    lines = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert [status for status, _ in lines].count(signal.SIGALRM) >= KILLS // 3, lines
    return [said for _, said in lines]


def directories(home: Path, prepare: Callable[[Path], None] = Path.mkdir) -> list[Path]:
    found = [home / str(number) for number in range(KILLS + 2)]
    for each in found:
        prepare(each)
    return found


def with_records(directory: Path) -> None:
    store = TraceStore(directory)
    for number in range(RECORDS):
        store.append(recorded_trace(str(number)))


def test_a_journal_has_every_record_that_was_written(tmp_path: Path) -> None:
    homes = directories(tmp_path)
    written = killed("journal", homes, 100)
    assert any(written)
    for home, said in zip(homes[2:], written, strict=True):
        with capture_logs():
            read = [trace.id for trace in read_traces(home)]
        assert read == [str(number) for number in range(len(read))] and said <= len(read) <= said + 1


@pytest.mark.parametrize("kind", ["archives", "indexes"])
def test_archiving_and_indexing_lose_nothing_and_count_nothing_twice(kind: str, tmp_path: Path) -> None:
    homes = directories(tmp_path, with_records)
    expected = [str(number) for number in range(RECORDS)]
    killed(kind, homes, 1.2)
    for home in homes:
        with capture_logs():
            assert [trace.id for trace in read_traces(home)] == expected
            with Traces(home) as traces:
                assert [trace.id for trace in traces.traces()] == expected


def test_a_side_file_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    homes = directories(tmp_path)
    written = killed("side_file", homes, 3)
    assert any(written)
    for home, said in zip(homes[2:], written, strict=True):
        with capture_logs() as logs:
            read = len(list(read_trained(home)))
        assert read % SAMPLES == 0 and said <= read // SAMPLES <= said + 1 and logs == []
