"""What goes into an archive comes out of it, position by position; and an export has the same in columns."""

from __future__ import annotations

import json
import random
from array import array
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from random_traces import traces
from structlog.testing import capture_logs
from trace_samples import archived, read_file, recorded_trace

from mcp_rollout.rollout.trace.archive import Archive, archive
from mcp_rollout.rollout.trace.columns import write_columns
from mcp_rollout.rollout.trace.entries import SELECTABLE, entry_of, selectable
from mcp_rollout.rollout.trace.files import archive_of
from mcp_rollout.rollout.trace.journal import from_json, to_json
from mcp_rollout.rollout.trace.record import Trace
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


def test_a_record_may_have_integers_of_any_length() -> None:
    trace = recorded_trace()
    trace.turns[0].tools[0].arguments = {"k": 1 << 80}
    trace.messages.append({"role": "tool", "content": "", "of": 1 << 80})
    assert from_json(to_json(trace)) == trace


def test_log_probabilities_are_kept_as_the_float32_that_is_trained() -> None:
    numbers = [-0.1, -1e-30, -3.5, 0.0] * 40_000  # several texts
    assert unpacked(packed(numbers)) == array("f", numbers).tolist() and len(packed(numbers)) == 3


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
