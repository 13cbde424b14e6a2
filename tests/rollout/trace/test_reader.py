"""The index finds and sorts what the files hold, follows a run, and is made again when it is torn."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import pytest
from memory import peak_growth
from structlog.testing import capture_logs
from trace_samples import recorded_trace

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.rollout.environment.task import Origin
from mcp_rollout.rollout.trace.archive import archive
from mcp_rollout.rollout.trace.files import archive_of
from mcp_rollout.rollout.trace.index import FILE
from mcp_rollout.rollout.trace.reader import Traces
from mcp_rollout.rollout.trace.record import Reward, Trace
from mcp_rollout.rollout.trace.store import TraceStore


def trace_of(number: int) -> Trace:
    trace = recorded_trace(f"{number:04d}")
    trace.origin = Origin(row=number // 4, sample=number % 4, step=number // 10)
    trace.task = trace.task.model_copy(update={"environment": ["retail", "calculator"][number % 2]})
    trace.reward = Reward(score=number % 7 / 7) if number % 5 else None
    if number % 11 == 0:
        trace.fail("server_unavailable", "gone")
    return trace


def write(directory: Path, *numbers: int) -> Path:
    """A journal of its own with these traces."""
    store = TraceStore(directory)
    for number in numbers:
        store.append(trace_of(number))
    store.close()
    return max(directory.glob("*.jsonl"))


def ids(traces: Traces, **query: object) -> list[str]:
    return [entry["id"] for entry in traces.entries(**query)]  # pyright: ignore[reportArgumentType]


def found(directory: Path, **query: object) -> list[str]:
    with Traces(directory) as traces:
        return ids(traces, **query)


def test_entries_are_filtered_and_sorted_and_read(tmp_path: Path) -> None:
    write(tmp_path, *range(40))
    with Traces(tmp_path) as traces:
        chosen = ids(traces, where="environment = 'retail' and step >= 2 and reward < 0.5", sort=["-reward", "id"])
        all_traces = [trace_of(number) for number in range(40)]
        expected = [t for t in all_traces if t.task.environment == "retail" and t.origin.step >= 2 and t.reward]
        scores = {trace.id: trace.reward.score for trace in expected if trace.reward and trace.reward.score < 0.5}
        assert chosen == sorted(scores, key=lambda each: (-scores[each], each)) and chosen
        assert list(traces.traces(where="step = 3")) == all_traces[30:40]
        assert traces.count("failure = 'server_unavailable'") == 4
        (entry,) = traces.entries(where="id = '0001'")
        assert entry["calls"] == {"x": 1} and entry["errors"] == {} and entry["text"] == "hé" and entry["turns"] == 1
        last = ids(traces, sort=["reward"])[-8:]
        assert all(trace_of(int(each)).reward is None for each in last)  # without a value: last


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ({"where": "nonsense = 1"}, "no such column: nonsense"),
        ({"where": "reward <"}, "syntax error"),
        ({"where": "1); DELETE FROM trajectories; --"}, "one statement|syntax error|incomplete"),
        ({"sort": ["reward; DROP TABLE files"]}, "there is no column"),
        ({"columns": ["id, file"]}, "there is no column"),
    ],
)
def test_a_query_that_is_wrong_names_the_columns_and_changes_nothing(
    tmp_path: Path, query: dict[str, object], problem: str
) -> None:
    write(tmp_path, 1, 2)
    with Traces(tmp_path) as traces:
        with pytest.raises(ConfigError, match=problem) as error:
            ids(traces, **query)
        assert "stop_reason" in str(error.value)
        assert traces.count() == 2


def test_the_index_follows_a_run_through_journal_and_archive(tmp_path: Path) -> None:
    store = TraceStore(tmp_path / "run" / "deep")
    store.append(trace_of(0))
    with Traces(tmp_path) as traces:
        assert ids(traces) == ["0000"]
        store.append(trace_of(1))
        traces.refresh()
        entries = list(traces.entries())
        (journal,) = (tmp_path / "run" / "deep").iterdir()
        store.close()
        archive(journal)
        assert [traces.read(entry).id for entry in entries] == ["0000", "0001"]  # where the files are now
        assert ids(traces) == ["0000", "0001"]
        write(tmp_path, 2)
        traces.refresh()
        assert sorted(ids(traces)) == ["0000", "0001", "0002"]
        archive_of(journal).unlink()
        traces.refresh()
        assert ids(traces) == ["0002"]


def test_a_torn_index_is_made_again_wherever_it_was_cut(tmp_path: Path) -> None:
    write(tmp_path, *range(60))
    expected = found(tmp_path, sort=["id"])
    whole = (tmp_path / FILE).read_bytes()
    draw = random.Random(3)
    cuts = [
        0,
        1,
        16,
        99,
        100,
        4096,
        len(whole) - 1,
        len(whole) - 4096,
        *(draw.randrange(len(whole)) for _ in range(20)),
    ]
    for cut in cuts:
        (tmp_path / FILE).write_bytes(whole[:cut])
        with capture_logs():
            assert found(tmp_path, sort=["id"]) == expected, cut
    (tmp_path / FILE).write_bytes(b"no index at all" * 1000)
    with capture_logs():
        assert found(tmp_path, sort=["id"]) == expected


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}


def test_a_directory_without_an_index_file_of_its_own_is_read_all_the_same(tmp_path: Path) -> None:
    write(tmp_path, 1, 2)
    (tmp_path / FILE).mkdir()  # no file can be written there
    with capture_logs():
        assert found(tmp_path) == ["0001", "0002"]


def test_a_question_of_the_page_is_bounded_in_memory(tmp_path: Path) -> None:
    write(tmp_path, 1)
    with Traces(tmp_path) as traces:
        asked = traces.beside(query_timeout_s=60)
        assert asked.count("length(hex(zeroblob(100))) = 200") == 1
        for value in (
            "hex(zeroblob(400000000))",
            "printf('%.*c', 900000000, 'x')",
            "replace(hex(zeroblob(9999)), '0', hex(zeroblob(99999)))",
        ):
            with peak_growth() as growth, pytest.raises(ConfigError, match="cannot be asked for"):
                asked.count(f"length({value}) > 0")
            assert growth() < 300 << 20
        assert asked.count() == 1
        asked.close()
