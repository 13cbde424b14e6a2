"""The asynchronous modes: each trained token, from the weights that its trace names, by the engine's own log.

`make test` runs two steps; the full tests at least 200 turns in each mode, and show that the check finds faults.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import async_training
import pytest
from async_check import problems, read_run, turns_of
from async_faults import FAULTS, Fault, broken
from async_training import SEPARATE
from verl_run import logged

pytestmark = [pytest.mark.verl, pytest.mark.timeout(1800)]

ROWS, SAMPLES, STEPS = 4, 8, 4
STRATEGY = "++actor_rollout_ref.rollout.custom.mcp.environment.strategy"
MODES: dict[str, dict[str, Any]] = {
    # An engine that is not ours, to which each attempt comes with a seed of its own.
    "colocate": {"actor_rollout_ref.rollout.name": "watched"},
    # Two batches for each set of weights, with an estimator that reads columns of its own.
    "separate": SEPARATE
    | {
        "trainer.v1.separate_async.parameter_sync_step": 2,
        "actor_rollout_ref.actor.ppo_mini_batch_size": ROWS // 2,
        "algorithm.adv_estimator": "step_grpo",
    },
    "tree": {
        f"{STRATEGY}.use": "tree",
        f"{STRATEGY}.tree.roots": 4,
        "algorithm.adv_estimator": "tree_grpo",
        # Most generations end before the batch does: more batches in flight, so that enough are interrupted.
        "trainer.v1.colocate_async.num_warmup_batches": 2,
        "trainer.v1.sampler.max_off_policy_threshold": 3,
    },
    # A training sample for each turn.
    "single_turn": {f"{STRATEGY}.use": "single_turn"},
}


def test_two_steps_of_colocate_train_on_whole_groups_of_which_each_token_is_accounted_for(tmp_path: Path) -> None:
    overrides = async_training.prepare(tmp_path, rows=2, samples=4)
    async_training.run(tmp_path, {**overrides, "trainer.total_training_steps": 2}, step_s=0.02)
    found, metrics = read_run(tmp_path), logged(tmp_path)
    assert sorted(metrics) == [1, 2] and len(found.trained) >= 2 * 2 * 4
    for step in metrics.values():
        assert (step["mcp/trajectories"], step["mcp/group_size/min"], step["mcp/withdrawn_groups"]) == (8, 4, 0)
    assert problems(found) == []


@pytest.fixture(scope="module", params=MODES)
def home(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp(request.param)
    overrides = async_training.prepare(home, rows=ROWS, samples=SAMPLES)
    own = {"trainer.total_training_steps": STEPS, "trainer.test_freq": 2, **MODES[request.param]}
    async_training.run(home, overrides | own, step_s=0.05)
    return home


@pytest.mark.full
def test_over_200_turns_each_trained_token_has_the_log_probability_of_the_weights_of_its_version(home: Path) -> None:
    found = read_run(home)
    turns = turns_of(found)
    assert len(turns) >= 200 and sum(len(turn["attempts"]) > 1 for turn in turns) >= 5
    versions = {version for row in found.trained if row["dropped"] is None for version in row["versions"]}
    assert len(versions) >= 3
    assert problems(found) == []


@pytest.mark.full
def test_metrics_count_the_trajectories_of_the_whole_step(home: Path) -> None:
    metrics = logged(home)
    assert sorted(metrics) == list(range(1, STEPS + 1))
    for step in metrics.values():
        assert step["mcp/trajectories"] == ROWS * SAMPLES
        assert (step["mcp/group_size/min"], step["mcp/withdrawn_groups"]) == (SAMPLES, 0)
    assert {step for step, found in metrics.items() if "val-core/echo/reward/mean@1" in found} == {2, 4}
    assert max(step["training/off_policy/trajectory_staleness_worst/max"] for step in metrics.values()) >= 1


@pytest.mark.full
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__.strip("_"))
def test_the_check_finds(home: Path, fault: Fault) -> None:
    assert problems(broken(read_run(home), fault))
