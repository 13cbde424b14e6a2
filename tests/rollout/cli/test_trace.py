"""The `trace` commands on recorded trajectories of several directories."""

from __future__ import annotations

import json
from dataclasses import replace
from math import exp
from pathlib import Path

import pytest
from trace_samples import recorded_trace
from typer.testing import CliRunner

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.rollout.cli.trace import app
from mcp_rollout.rollout.environment.sections import Strategy
from mcp_rollout.rollout.environment.task import Origin
from mcp_rollout.rollout.trace.archive import Archive, archive
from mcp_rollout.rollout.trace.entries import entry_of
from mcp_rollout.rollout.trace.outcome import StrategyRecord
from mcp_rollout.rollout.trace.reader import Traces
from mcp_rollout.rollout.trace.record import Reward
from mcp_rollout.rollout.trace.store import TraceStore, read_traces
from mcp_rollout.rollout.trace.trained import write_trained
from mcp_rollout.rollout.trace.trained_segment import TrainedSegment


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("traces")
    for number in range(6):
        trace = recorded_trace(f"{number}{'ab' * 15}")
        trace.origin = Origin(row=number // 2, sample=number % 2, step=number if number > 2 else -1)
        trace.reward = Reward(score=number / 10)
        trace.turns[0].thinking = f"first line {number}\nsecond line"
        trace.turns[0].tools[0].is_error = number == 4
        if number == 5:
            trace.fail("server_unavailable", "gone")
        TraceStore(directory / f"run{number % 2}").append(trace)
    return directory


def trace(*arguments: object, status: int = 0) -> str:
    done = CliRunner().invoke(app, list(map(str, arguments)), standalone_mode=False)
    if isinstance(done.exception, ConfigError):
        raise done.exception
    assert done.exception is None and done.return_value == status, done.output
    return done.stdout


def test_ls_shows_whole_ids_of_sub_directories_in_a_pipe(directory: Path) -> None:
    lines = trace("ls", directory, "--sort", "-reward").splitlines()
    assert lines[0].split() == ["id", "environment", "task", "row", "sample", "step", "turns", "reward", "stop_reason"]
    assert [line.split()[0] for line in lines[1:]] == [f"{number}{'ab' * 15}" for number in (5, 4, 3, 2, 1, 0)]
    assert lines[2].split()[3:6] == ["2", "0", "4"] and lines[-1].split()[3:6] == ["0", "0", "-"]


def test_ls_filters_and_chooses_columns(directory: Path) -> None:
    out = trace(
        "ls", directory, "--where", "step >= 3 and not withdrawn", "--sort", "step", "--columns", "row,calls", "-n", "1"
    )
    assert out.splitlines()[1].split(maxsplit=1) == ["1", '{"x": 1}']
    (line,) = trace("ls", directory, "--where", "failure is not null", "--json").splitlines()
    assert json.loads(line)["failure"] == "server_unavailable"


def test_show_finds_by_id_row_worst_and_failure_and_keeps_lines(directory: Path) -> None:
    assert "thinks  first line 3\n        second line\n" in trace("show", directory, "3a")
    assert trace("show", directory, "--row", "1").count("row 1, sample") == 2
    assert "0abab" in trace("show", directory, "--worst")
    assert "server_unavailable: gone" in trace("show", directory, "--failed")
    with pytest.raises(ConfigError, match="no such trajectory"):
        trace("show", directory, "nothing")
    with pytest.raises(ConfigError, match="which trajectory"):
        trace("show", directory)


def test_show_lists_what_the_trainer_computed_on_each_token(directory: Path) -> None:
    with Traces(directory) as traces:
        entry = next(traces.entries(where="id LIKE '1a%'"))
        home = traces.home_of(entry)
    numbers = {"sampled_logprobs": [-0.5, -1.5], "advantages": [0.5, 0.0]}
    trained = TrainedSegment(
        trace=entry["id"], segment=0, step=4, uid="u", sample=0, output=0, mask=[True, False],
        trainer_logprobs=[-0.25, 0.0], **numbers,
    )  # fmt: skip
    write_trained(home, 4, [trained, replace(trained, trace="another", advantages=[9.0, 0.0])])
    header, columns, first, second = trace("show", directory, "1a", "--tokens").splitlines()
    assert header.endswith(" step 4") and columns.split()[-6:] == [
        "trainer", "ratio", "advantage", "push", "entropy", "text",
    ]  # fmt: skip
    push = 0.5 * (1 - exp(-0.25))
    assert first.split()[-5:] == ["-0.50000", "-0.25000", "1.28403", "0.50000", f"{push:.5f}"]  # no entropy, no text
    assert second.split()[-1] == "-1.50000"


def test_show_lists_tokens(directory: Path) -> None:
    lines = trace("show", directory, "3a", "--tokens").splitlines()
    assert [line.split() for line in lines[2:]] == [
        ["0", "0", "1", "thinking", "1", "3", "-0.50000"],
        ["0", "1", "1", "completion", "1", "4", "-1.50000"],
    ]


def test_show_says_why_no_token_of_a_trajectory_was_trained_on(directory: Path, tmp_path: Path) -> None:
    assert trace("show", directory, "5a", "--tokens").splitlines()[0].endswith(" withdrawn: server_unavailable")
    TraceStore(tmp_path).append(recorded_trace("filtered"))
    dropped = TrainedSegment(trace="filtered", segment=0, step=2, uid="u", sample=0, output=0, dropped="filtered")
    write_trained(tmp_path, 2, [dropped])
    assert trace("show", tmp_path, "filtered", "--tokens").splitlines()[0] == "filtered step 2 dropped: filtered"


def test_show_breaks_no_line_in_a_pipe(directory: Path, tmp_path: Path) -> None:
    long = recorded_trace("long")
    long.turns[0].content = " ".join(["word"] * 100)
    TraceStore(tmp_path).append(long)
    assert f"says    {long.turns[0].content}\n" in trace("show", tmp_path, "long")


def test_stats_of_nothing_say_so(tmp_path: Path) -> None:
    assert trace("stats", tmp_path, status=1) == ""
    with pytest.raises(ConfigError, match="sort: there is no column 'colour'"):
        trace("ls", tmp_path, "--sort=-colour")


def test_export_to_columns(directory: Path, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    trace("export", directory, "--parquet", "-o", tmp_path / "new" / "all.parquet", "--where", "row < 2")
    assert pq.read_table(tmp_path / "new" / "all.parquet").num_rows == 4


def test_leaves_of_a_tree_show_what_they_share_or_why_they_do_not(tmp_path: Path) -> None:
    made = {
        "root": StrategyRecord(use=Strategy.TREE),
        "branch": StrategyRecord(use=Strategy.TREE, shared_turns=1, replayed_calls=2),
        "restored": StrategyRecord(use=Strategy.TREE, shared_turns=1, restored=True),
        "alone": StrategyRecord(use=Strategy.TREE, note="no root to branch at: 1 not played"),
        "diverged": StrategyRecord(use=Strategy.TREE, diverged="turn 1, x {}: text.a: 1 became 2"),
    }
    for name, strategy in made.items():
        leaf = recorded_trace(name)
        leaf.strategy = strategy
        parent = "root" if strategy.shared_turns else None
        leaf.origin = leaf.origin.model_copy(update={"parent": parent})
        TraceStore(tmp_path / name).append(leaf)
    heads = {name: trace("show", tmp_path, name).splitlines()[3] for name in made}
    assert heads == {
        "root": "tree",
        "branch": "tree: 1 turns are those of root (calls replayed: 2)",
        "restored": "tree: 1 turns are those of root (world restored)",
        "alone": "tree: a chain, since no root to branch at: 1 not played",
        "diverged": "tree: a chain, since its replay diverged: turn 1, x {}: text.a: 1 became 2",
    }
    columns = ["ls", tmp_path, "--sort", "id", "--columns", "id,strategy,shared_turns,restored,note", "--json"]
    rows = [tuple(json.loads(line).values()) for line in trace(*columns).splitlines()]
    assert rows == [
        ("alone", "tree", 0, 0, made["alone"].note),
        ("branch", "tree", 1, 0, ""),
        ("diverged", "tree", 0, 0, made["diverged"].diverged),
        ("restored", "tree", 1, 1, ""),
        ("root", "tree", 0, 0, ""),
    ]
    # The index reads the same from an archive.
    for file in tmp_path.glob("*/*.jsonl"):
        kept = Archive(archive(file)).entries()
        assert kept is not None and [entry for _, entry in kept] == [
            entry_of(each) for each in read_traces(file.parent)
        ]
