"""The report of a run whose trees are not trees, over trajectories that real servers played."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from trees import SCORED, Engine, World, grow, own
from worlds import environment

from mcp_rollout.rollout.cli.run_report import Played, print_report
from mcp_rollout.rollout.evaluation.summary import Outcome, notes_on_trees

pytestmark = pytest.mark.anyio


async def reported(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    world: World,
    engine: Engine,
    tree: Mapping[str, Any],
) -> tuple[list[str], dict[str, str]]:
    """The notes on a group of four leaves, and the rows of the report's table."""
    traces = await grow({"world": world.server}, engine, tmp_path, leaves=4, tree=tree, **SCORED)
    made = environment({"world": world.server}, strategy={"use": "tree", "tree": tree})
    outcomes = [Outcome.of(trace) for trace in traces.values()]
    notes = notes_on_trees(outcomes, [made])
    played = Played(engine="test", notes=notes, outcomes=outcomes, resumed=frozenset(), seconds=1.0, counts_bytes=False)
    capsys.readouterr()
    print_report(played, [made], out=tmp_path, split="test", samples=4, success_at=1.0, as_json=False)
    lines = [line.split("│") for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    return notes, {cells[1].strip(): cells[2].strip() for cells in lines}


async def test_branches_that_all_diverge_are_reported_with_the_first_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    count = itertools.count()
    world = World(answer=lambda total: (f"{total}, call {next(count)}", {}))
    notes, table = await reported(tmp_path, capsys, world, Engine(own), {"roots": 1})
    (note,) = notes
    assert note.startswith(
        "test: 3 of 3 leaves that were to branch are chains: 3 x diverged; the first that diverged: turn 1, add {"
    )
    assert table["branches"] == "0"


async def test_roots_without_a_second_turn_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine = Engine(lambda sample, turn: "Done.")
    notes, table = await reported(tmp_path, capsys, World(), engine, {"roots": 2})
    assert notes == [
        "test: 2 of 2 leaves that were to branch are chains: 2 x no root to branch at: 2 ended after one turn"
    ]
    assert table["branches"] == "0"


@pytest.mark.parametrize("snapshots", [False, True])
async def test_a_tree_that_is_one_has_its_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], snapshots: bool
) -> None:
    world, tree = World(snapshots=snapshots), {"roots": 1, "branch_at": "first_turns", "first_turns": 1}
    notes, table = await reported(tmp_path, capsys, world, Engine(own), tree)
    assert notes == ["test: leaves of a tree share beginnings, so pass@k is not that of independent samples"]
    assert table["branches"] == "3"
