"""Three steps of verl's trainer with worlds on two shards of its Ray, one of which is killed in the middle."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from echo_training import ROWS, SHOUT_PLUM, prepare_training
from engine_log import read_records
from verl_run import logged, train

pytestmark = [pytest.mark.verl, pytest.mark.full, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[3]
STEPS, SAMPLES = 3, 4


def environment(ledger: Path) -> dict[str, Any]:
    entry = {
        "command": sys.executable,
        "args": [str(ROOT / "tests" / "support" / "ledger_server.py")],
        # In the middle of the second step, where every trajectory calls once.
        "env": {"LEDGER": str(ledger), "ENDS_ITS_HOST_AFTER": str(ROWS * SAMPLES + 3)},
        "roles": {"reset": "reset", "score": "judge"},
        "tools": {"change": {"shout": {"fixed": {"id": "${trajectory.id}"}}}},
    }
    return {
        "servers": {"ledger": entry},
        "reward": {"server": "ledger", "parts": ["letters"]},
        "limits": {"attempts": 2},
        "hosts": {"ray": {"min": 2, "max": 2, "lost_after_s": 3.0}},
    }


@dataclass(frozen=True)
class Run:
    metrics: dict[int, dict[str, Any]]
    records: list[dict[str, Any]]
    ledger: Counter[str]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    home = tmp_path_factory.mktemp("shards")
    overrides = prepare_training(home, environment(home / "ledger"), SHOUT_PLUM, samples=SAMPLES)
    (home / "ledger").unlink(missing_ok=True)
    overrides |= {"trainer.total_training_steps": STEPS, "+ray_kwargs.ray_init.resources": "{mcp_shard: 2}"}
    done = train(home, overrides)
    assert done.returncode == 0, done.stdout[-8000:]
    return Run(logged(home), read_records(home / "traces"), Counter((home / "ledger").read_text().split()))


def test_batches_are_complete_and_the_lost_worlds_counted(run: Run) -> None:
    assert sorted(run.metrics) == list(range(1, STEPS + 1))
    for metrics in run.metrics.values():
        assert metrics["mcp/trajectories"] == ROWS * SAMPLES
        assert metrics["mcp/failed_share"] == 0 and metrics["mcp/group_size/min"] == SAMPLES
    lost = sum(metrics["mcp/worlds_lost"] for metrics in run.metrics.values())
    assert lost == sum(record["stop_reason"] == "failed" for record in run.records) > 0


def test_each_lost_trajectory_was_played_again_from_its_row(run: Run) -> None:
    lost = [record for record in run.records if record["stop_reason"] == "failed"]
    assert {record["failure"]["kind"] for record in lost} == {"world_lost"}

    def place(record: dict[str, Any]) -> tuple[int, ...]:
        return tuple(record["origin"][name] for name in ("step", "row", "sample"))

    again = [record for record in run.records if record["origin"]["attempt"] == 1]
    assert sorted(map(place, lost)) == sorted(map(place, again))


def test_the_ledger_agrees_with_the_traces(run: Run) -> None:
    """The preflight calls nothing, so every execution belongs to a trajectory."""
    for record in run.records:
        sent = sum(event["server"] is not None for turn in record["turns"] for event in turn["tools"])
        # The call in which a world was lost is recorded too; whether it was executed is what is not known.
        unanswered = record["stop_reason"] == "failed"
        assert sent - unanswered <= run.ledger.pop(record["id"], 0) <= sent, record["id"]
    assert not run.ledger
