"""Commands over traces hold one record at a time, and `run` none that has ended: bytes and records are counted."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path

import pytest
from trace_samples import recorded_trace
from typer.testing import CliRunner

from mcp_rollout.rollout.cli.app import app as program
from mcp_rollout.rollout.cli.trace import app
from mcp_rollout.rollout.environment.task import Origin
from mcp_rollout.rollout.evaluation.summary import Outcome
from mcp_rollout.rollout.trace.archive import archive
from mcp_rollout.rollout.trace.record import Reward, Trace
from mcp_rollout.rollout.trace.store import TraceStore

TOKENS = 20_000
"""Of each record: 160 KB or more, once it is read."""
FEW, MANY = 10, 60
COMMANDS = {
    "ls": ("ls",),
    "ls, sorted": ("ls", "--where", "reward > 0.1", "--sort", "-reward"),
    "stats": ("stats",),
    "show": ("show", "--worst"),
    "show, all": ("show", "--where", "reward >= 0"),
}


def written(directory: Path, records: int, *, archived: bool) -> Path:
    directory.mkdir()
    store = TraceStore(directory)
    for number in range(records):
        trace = recorded_trace(f"{number:04d}")
        trace.origin = Origin(row=number)
        trace.reward = Reward(score=number / records)
        trace.prompt_ids = list(range(TOKENS))
        store.append(trace)
    store.close()
    if archived:
        for journal in directory.glob("*.jsonl"):
            archive(journal)
    return directory


def peak_bytes(arguments: tuple[str, ...], directory: Path) -> int:
    command, *options = arguments
    given = [command, str(directory), *options]
    CliRunner().invoke(app, given, standalone_mode=False)  # makes the index, and imports
    gc.collect()
    tracemalloc.start()
    try:
        done = CliRunner().invoke(app, given, standalone_mode=False)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert done.exception is None, done.output
    return peak


@pytest.mark.parametrize("archived", [False, True], ids=["journals", "archives"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_trace_command_holds_no_more_of_many_records_than_of_few(
    command: str, archived: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_rollout.rollout.trace.archive._FRAME", 300_000)  # of which one is held
    few, many = (
        peak_bytes(COMMANDS[command], written(tmp_path / f"{records}", records, archived=archived))
        for records in (FEW, MANY)
    )
    assert (many - few) / (MANY - FEW) < 20_000, (few, many)


def test_run_holds_no_trajectory_that_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alive = list[int]()
    of = Outcome.of

    def noting(trace: Trace) -> Outcome:
        gc.collect()
        alive.append(sum(isinstance(each, Trace) for each in gc.get_objects()))
        return of(trace)

    monkeypatch.setattr(Outcome, "of", noting)
    arguments = ["run", "calculator", "--engine", "expert", "-n", "24", "--concurrency", "2", "--out", str(tmp_path)]
    done = CliRunner().invoke(program, arguments, standalone_mode=False)
    assert done.exception is None and len(alive) == 24, done.output
    assert max(alive) <= 3 + min(alive), alive
