"""What goes into an archive comes out of it, position by position; and an export has the same in columns."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from array import array
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from pydantic import TypeAdapter
from random_traces import traces
from structlog.testing import capture_logs
from trace_samples import archived, read_file, recorded_trace

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.rollout.trace.archive import Archive, archive
from mcp_rollout.rollout.trace.columns import schema, write_columns
from mcp_rollout.rollout.trace.entries import SELECTABLE, entry_of, selectable
from mcp_rollout.rollout.trace.files import archive_of
from mcp_rollout.rollout.trace.journal import from_json, pieces, to_json
from mcp_rollout.rollout.trace.lines import lines_of
from mcp_rollout.rollout.trace.reader import Traces
from mcp_rollout.rollout.trace.record import Reward, Trace
from mcp_rollout.rollout.trace.segment import packed, unpacked
from mcp_rollout.rollout.trace.store import TraceStore, read_traces

NUMBERS = ("prompt_ids", "response_ids", "loss_mask", "logprobs")
EXAMPLES = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("archives")


@EXAMPLES
@given(traces())
def test_every_record_comes_out_of_an_archive_as_it_went_in(directory: Path, trace: Trace) -> None:
    as_recorded = from_json(to_json(trace))
    assert as_recorded == trace
    path = archived(directory, "one", [trace, trace])
    assert read_file(path) == [as_recorded, as_recorded]
    entries = Archive(path).entries()
    assert entries is not None
    for place, entry in entries:
        assert json.loads(json.dumps(entry_of(trace))) == entry
        assert from_json(next(Archive(path).lines(place))[1]) == as_recorded


@EXAMPLES
@given(traces())
def test_columns_have_what_the_record_has(directory: Path, trace: Trace) -> None:
    path = directory / "one.parquet"
    assert write_columns(path, [trace]) == 1
    (row,) = pq.read_table(path).to_pylist()
    assert {name: row[name] for name in SELECTABLE} == selectable(trace)
    assert [each["content"] for each in row["generations"]] == [turn.content for turn in trace.turns]
    calls = [[call["text"] for call in each["tools"]] for each in row["generations"]]
    assert calls == [[event.text for event in turn.tools] for turn in trace.turns]
    for found, segment in zip(row["segments"], (*trace.earlier, trace), strict=True):
        assert {name: found[name] for name in NUMBERS} == {name: getattr(segment, name) for name in NUMBERS}


@EXAMPLES
@given(traces())
def test_a_record_is_written_in_pieces_as_pydantic_writes_it(trace: Trace) -> None:
    as_numbers = json.loads(to_json(trace))
    for segment in (*as_numbers["earlier"], as_numbers):
        segment["logprobs"] = unpacked(segment["logprobs"])
    assert as_numbers == json.loads(TypeAdapter(Trace).dump_json(trace, by_alias=True))
    assert b"".join(pieces(trace)) == to_json(trace)


def test_a_record_may_have_integers_of_any_length() -> None:
    trace = recorded_trace()
    trace.turns[0].tools[0].arguments = {"k": 1 << 80}
    trace.messages.append({"role": "tool", "content": "", "of": 1 << 80})
    assert from_json(to_json(trace)) == trace


def test_log_probabilities_are_kept_as_the_float32_that_is_trained() -> None:
    numbers = [-0.1, -1e-30, -3.5, 0.0] * 40_000  # several texts
    assert unpacked(packed(numbers)) == array("f", numbers).tolist() and len(packed(numbers)) == 3


def test_the_index_makes_entries_of_another_version_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_rollout.rollout.trace.archive.VERSION", 1)
    archived(tmp_path, "a", map(recorded_trace, "abc"))
    monkeypatch.undo()
    with Traces(tmp_path) as traces:
        assert [traces.read(entry).id for entry in traces.entries()] == ["a", "b", "c"]


def test_exports_of_several_environments_have_one_schema(tmp_path: Path) -> None:
    for environment in ("retail", "calculator", "research"):
        trace = recorded_trace(environment)
        trace.task = trace.task.model_copy(update={"environment": environment})
        trace.reward = Reward(score=1.0, parts={environment: 1.0})
        write_columns(tmp_path / f"{environment}.parquet", [trace])
    assert all(pq.read_schema(path).equals(schema()) for path in tmp_path.iterdir())


def test_a_torn_archive_hides_nothing_else_and_is_named(tmp_path: Path) -> None:
    """Cut at seeded places, the last and the first bytes included; with its journal beside it nothing is lost."""
    store = TraceStore(tmp_path)
    for name in "abc":
        store.append(recorded_trace(name))
    store.close()
    (journal,) = tmp_path.iterdir()
    line = journal.read_bytes()
    whole = archive(journal).read_bytes()
    TraceStore(tmp_path).append(recorded_trace("d"))
    draw = random.Random(0)
    edges = [0, 1, 4, 5, len(whole) - 1, len(whole) - 4, len(whole) - 8]
    for cut in [*edges, *(draw.randrange(len(whole)) for _ in range(20))]:
        archive_of(journal).write_bytes(whole[:cut])
        with capture_logs() as logs:
            assert [trace.id for trace in read_traces(tmp_path)] == ["d"], cut
        assert [entry["event"] for entry in logs] == ["skipped"] and journal.stem in logs[0]["file"]
        journal.write_bytes(line)
        with capture_logs():
            assert [trace.id for trace in read_traces(tmp_path)] == list("abcd"), cut
        journal.unlink()


def test_an_archive_that_is_damaged_before_its_table_hides_nothing_else(tmp_path: Path) -> None:
    path = archived(tmp_path, "a", [recorded_trace("a")])
    TraceStore(tmp_path).append(recorded_trace("b"))
    with Traces(tmp_path) as traces:
        entries = {entry["id"]: entry for entry in traces.entries()}
        whole = path.read_bytes()
        table = 8 + 2 * 8 + 9  # of the lines and of the entries
        path.write_bytes(b"\xff" * (len(whole) - table) + whole[-table:])
        with capture_logs() as logs, pytest.raises(ConfigError):
            traces.read(entries["a"])
        assert [entry["id"] for entry in traces.entries()] == ["b"]
    assert [Path(entry["file"]) for entry in logs if entry["event"] == "skipped"] == [path]


def test_an_archive_of_several_frames_is_read_from_any_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_rollout.rollout.trace.archive._FRAME", 5000)  # two records
    path = archived(tmp_path, "a", map(recorded_trace, "abcdefg"))
    lines = list(lines_of(path))
    assert [from_json(line).id for _, line in lines] == list("abcdefg")
    for number, (place, _) in enumerate(lines):
        assert list(lines_of(path, place)) == lines[number:]


def test_a_journal_cut_anywhere_loses_the_record_at_the_cut_only(tmp_path: Path) -> None:
    store = TraceStore(tmp_path)
    for name in "abc":
        store.append(recorded_trace(name))
    (journal,) = tmp_path.iterdir()
    whole = journal.read_bytes()
    ends = [index for index, byte in enumerate(whole) if byte == 10]
    draw = random.Random(1)
    for cut in [0, 1, *ends, *(end + 1 for end in ends), *(draw.randrange(len(whole)) for _ in range(60))]:
        journal.write_bytes(whole[:cut])
        complete = [name for name, end in zip("abc", ends, strict=True) if cut >= end]  # a newline may be missing
        with capture_logs():
            assert [trace.id for trace in read_traces(tmp_path)] == complete, cut


KILLED = """
import os, signal, sys
from pathlib import Path
from mcp_rollout.rollout.trace.archive import archive

def killed_at(step, journal):
    taken = 0
    def counted(call):
        def counting(*arguments, **named):
            nonlocal taken
            taken += 1
            if taken > step:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **named)
        return counting
    for name in ("open", "fsync", "replace", "rename", "unlink"):
        setattr(os, name, counted(getattr(os, name)))
    archive(journal)

for step, journal in enumerate(map(Path, sys.argv[1:])):
    child = os.fork()
    if not child:
        killed_at(step, journal)
        os._exit(0)
    print(os.waitpid(child, 0)[1])
"""


def test_archiving_that_is_killed_at_any_step_loses_nothing(tmp_path: Path) -> None:
    journals: list[Path] = []
    for step in range(9):
        store = TraceStore(tmp_path / str(step))
        for name in "abc":
            store.append(recorded_trace(name))
        journals += (tmp_path / str(step)).iterdir()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", KILLED, *journals]
    done = subprocess.run(command, env=environment, timeout=100, capture_output=True, check=True)
    statuses = list(map(int, done.stdout.split()))
    assert statuses[:4] == [signal.SIGKILL] * 4 and statuses[-1] == 0
    for journal in journals:
        assert [trace.id for trace in read_traces(journal.parent)] == list("abc"), journal
    assert not journals[-1].exists()
