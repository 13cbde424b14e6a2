"""`run` with a strategy: each row's trajectories are a group of their own."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import mcp_rollout

from lab.worlds.copies import raw_environment
from mcp_rollout.rollout.trace.reader import Traces
from mcp_rollout.rollout.trace.store import read_traces

COMMAND = Path(sys.executable).with_name("mcp-rollout")


def run(tmp_path: Path, strategy: Any, *arguments: str) -> Any:
    """The report of a run."""
    return ran(tmp_path, strategy, *arguments)[0]


def ran(tmp_path: Path, strategy: Any, *arguments: str, status: int = 0) -> tuple[Any, str]:
    """The report of a run, None where it failed, and what it said on standard error."""
    raw = raw_environment("depot", slice="fitting")
    file = tmp_path / "depot.yaml"
    file.write_text(yaml.safe_dump(raw | {"strategy": strategy}))
    done = mcp_rollout("run", file, "--engine", "expert", "--out", tmp_path / "out", "--json", *arguments)
    assert done.status == status, done.out + done.err
    return None if status else done.json, done.err


def test_the_rows_of_a_run_are_trees_of_their_own_at_any_concurrency(tmp_path: Path) -> None:
    tree = {"use": "tree", "tree": {"roots": 1}}
    report = run(tmp_path, tree, "-n", "3", "--samples", "4", "--concurrency", "1")
    traces = {trace.id: trace for trace in read_traces(tmp_path / "out")}
    branches = [trace for trace in traces.values() if trace.origin.parent is not None]
    assert len(traces) == 12 and Counter(trace.origin.row for trace in branches) == {0: 3, 1: 3, 2: 3}
    assert all(traces[trace.origin.parent or ""].origin.row == trace.origin.row for trace in branches)
    shared = sum(trace.strategy.shared_tokens for trace in branches)
    assert (report["reward_mean"], report["branches"]) == (1.0, 9)
    assert report["strategies"] == {"tree": 12} and "independent samples" in report["notes"][-1]
    sampled = sum(turn.sampled for trace in traces.values() for turn in trace.turns)
    assert report["sampled_tokens"] == sampled - shared
    # The index, and with it `trace stats`, `compare` and the page, count a token once, too.
    with Traces(tmp_path / "out") as entries:
        counts = [(entry["sampled_tokens"], sum(entry["completions"])) for entry in entries.entries()]
    assert [sum(column) for column in zip(*counts, strict=True)] == [sampled - shared] * 2
    compared = mcp_rollout("compare", tmp_path / "out", tmp_path / "out", "--json").json
    cost = compared["environments"]["depot"]["costs"]["sampled_tokens"]["a"]
    assert cost * 12 == pytest.approx(sampled - shared)


def test_a_resumed_run_rolls_out_branches_without_their_root_as_chains(tmp_path: Path) -> None:
    tree = {"use": "tree", "tree": {"roots": 1}}
    run(tmp_path, tree, "-n", "1")
    report = run(tmp_path, tree, "-n", "1", "--samples", "3", "--resume")
    assert report["branches"] == 0 and report["resumed"] == 1 and report["reward_mean"] == 1.0
    notes = [trace.strategy.note for trace in read_traces(tmp_path / "out")]
    assert notes == ["", *["no root to branch at: 1 played by an earlier run"] * 2]


def test_a_run_is_not_resumed_with_another_strategy(tmp_path: Path) -> None:
    run(tmp_path, "chain", "-n", "1")
    _, said = ran(tmp_path, {"use": "tree", "tree": {"roots": 1}}, "-n", "1", "--samples", "2", "--resume", status=2)
    assert "depot.yaml: strategy.use: is not what it was for the traces in " in said


def test_single_turns_are_evaluated_in_their_own_context(tmp_path: Path) -> None:
    report = run(tmp_path, "single_turn", "-n", "2")
    assert report["strategies"] == {"single_turn": 2} and report["reward_mean"] == 1.0
    for trace in read_traces(tmp_path / "out"):
        assert len(trace.segments) == len(trace.turns) == 14


def test_contexts_that_cannot_be_compacted_are_refused_before_anything_is_played(tmp_path: Path) -> None:
    compact = {"use": "compact", "compact": {"at_tokens": 4000, "keep_turns": 1}}
    _, said = ran(tmp_path, compact, "-n", "1", "--response-tokens", "9000", status=2)
    assert f"{tmp_path / 'depot.yaml'}: strategy.compact.at_tokens: is 4000" in said and "at most" in said
    assert not (tmp_path / "out").exists()
    report = run(tmp_path, compact, "-n", "2")  # the expert's contexts fit
    assert (report["reward_mean"], report["strategies"]) == (1.0, {"compact": 2})
