"""`mcp_sync` beside verl's `sync`, in whole runs of the same seed: the same rows, the same update, the same resume."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from echo_training import JUDGED, SHOUT_PLUM, prepare_training
from engine_log import read_records
from verl_run import logged, train

pytestmark = [pytest.mark.verl, pytest.mark.full, pytest.mark.timeout(1800)]

ROWS, SAMPLES = 6, 4


@dataclass(frozen=True)
class Run:
    home: Path
    metrics: dict[int, dict[str, Any]]
    records: list[dict[str, Any]]

    def rows(self, step: int) -> list[tuple[int, int]]:
        """Row and sibling of the trajectories of a step."""
        origins = [record["origin"] for record in self.records if record["origin"]["step"] == step]
        return sorted((origin["row"], origin["sample"]) for origin in origins)

    def sampled(self, step: int) -> dict[tuple[int, int], list[int]]:
        return {
            (record["origin"]["row"], record["origin"]["sample"]): record["response_ids"]
            for record in self.records
            if record["origin"]["step"] == step
        }


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Two steps of each trainer, and the second step of ours from the checkpoint that verl's wrote after the first."""
    prepared = tmp_path_factory.mktemp("prepared")
    overrides = prepare_training(prepared, JUDGED, SHOUT_PLUM, samples=SAMPLES)
    (first, *_) = pq.read_table(prepared / "rows.parquet").to_pylist()
    rows = [{**first, "extra_info": {**first["extra_info"], "index": index}} for index in range(ROWS)]
    pq.write_table(pa.Table.from_pylist(rows), prepared / "rows.parquet")
    overrides |= {
        "data.seed": 3,
        "actor_rollout_ref.actor.optim.lr": 1e-3,
        "trainer.total_training_steps": 2,
        "trainer.save_freq": 1,
    }
    found: dict[str, Run] = {}
    for name, own in {
        "sync": {"trainer.v1.trainer_mode": "sync"},
        "mcp_sync": {},
        "resumed": {"trainer.resume_mode": "resume_path"},
    }.items():
        home = tmp_path_factory.mktemp(name)
        if name == "resumed":
            own = {**own, "trainer.resume_from_path": found["sync"].home / "global_step_1"}
        done = train(home, {**overrides, **own})
        assert done.returncode == 0, done.stdout[-8000:]
        found[name] = Run(home, logged(home), read_records(home / "traces"))
    return found


def test_both_play_the_same_rows_and_sample_the_same_tokens_from_the_same_weights(runs: dict[str, Run]) -> None:
    sync, ours = runs["sync"], runs["mcp_sync"]
    for step in (1, 2):
        assert ours.rows(step) == sync.rows(step) and len(sync.rows(step)) == 2 * SAMPLES
    assert sync.rows(1) != sync.rows(2)
    assert ours.sampled(1) == sync.sampled(1)


def test_where_a_trajectory_is_one_sample_both_take_the_same_update(runs: dict[str, Run]) -> None:
    sync, ours = runs["sync"].metrics[1], runs["mcp_sync"].metrics[1]
    assert ours.keys() - sync.keys() == {"mcp/samples_per_trajectory"} and sync.keys() <= ours.keys()
    for key in ("actor/grad_norm", "actor/pg_loss", "actor/entropy", "critic/score/mean", "critic/advantages/max"):
        assert ours[key] == pytest.approx(sync[key], rel=1e-3, abs=1e-6), key


def test_ours_resumes_what_verls_trainer_saved(runs: dict[str, Run]) -> None:
    sync, resumed = runs["sync"], runs["resumed"]
    assert sorted(resumed.metrics) == [2] and resumed.rows(2) == sync.rows(2) and resumed.rows(1) == []
    assert resumed.metrics[2]["training/rollout_probs_diff_mean"] < 1e-4
    assert resumed.metrics[2]["critic/score/mean"] == pytest.approx(sync.metrics[2]["critic/score/mean"], abs=0.05)


def test_without_record_trained_nothing_is_recorded(runs: dict[str, Run]) -> None:
    assert not (runs["mcp_sync"].home / "traces" / "trained").exists()
