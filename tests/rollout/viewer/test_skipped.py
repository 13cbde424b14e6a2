"""What a reader of a directory skips, it says once for each file, however often it looks."""

from __future__ import annotations

from pathlib import Path

from structlog.testing import capture_logs
from trace_samples import recorded_trace

from mcp_rollout.rollout.trace.reader import Traces
from mcp_rollout.rollout.trace.record import Trace
from mcp_rollout.rollout.trace.store import TraceStore
from mcp_rollout.rollout.trace.trained import write_trained
from mcp_rollout.rollout.trace.trained_segment import SUFFIX, TrainedSegment
from mcp_rollout.rollout.viewer.pages import Pages


def recorded(name: str) -> Trace:
    trace = recorded_trace(name)
    trace.origin = trace.origin.model_copy(update={"validate_": False})  # of held-out ones no side file is read
    return trace


def test_a_reader_warns_of_each_torn_file_once(tmp_path: Path) -> None:
    store = TraceStore(tmp_path)
    store.append(recorded("a"))
    (journal,) = tmp_path.glob("*.jsonl")
    journal.write_bytes(journal.read_bytes() + b'{"half": \n{"half": \n')
    store.append(recorded("b"))
    with journal.open("ab") as file:
        file.write(b'{"killed')
    (tmp_path / "archived.jsonl.zst").write_bytes(b"half")
    (tmp_path / "broken.run.json").write_text("{")
    whole = write_trained(
        tmp_path, 7, [TrainedSegment(trace="c", segment=0, step=7, uid="u", sample=0, output=0, dropped="filtered")]
    )
    whole.with_name(f"00000007-0{SUFFIX}").write_bytes(b"half")
    names = [journal.name, "archived.jsonl.zst", "broken.run.json", f"00000007-0{SUFFIX}"]
    for _ in range(2):  # the second time the index knows the journal
        with capture_logs() as logs, Traces(tmp_path) as traces:
            for _ in range(3):
                traces.refresh()
                pages = Pages(traces)
                assert [pages.trained(entry, [entry["id"]]) for entry in traces.entries()] == [{}, {}]
                pages.record(next(traces.traces()))
        warned = [entry for entry in logs if entry["log_level"] == "warning"]
        assert sorted(Path(entry["file"]).name for entry in warned) == sorted(names)
        assert any("2 lines are not records" in entry["problem"] for entry in warned)
