"""One training step by each recipe of an algorithm, through verl's own entry point."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from echo_training import JUDGED, SHOUT_PLUM, prepare_training
from engine_log import read_records, rewards_differ
from verl_run import logged, train

pytestmark = [pytest.mark.verl, pytest.mark.full, pytest.mark.timeout(900)]

SAMPLES = 4
ACTOR = "actor_rollout_ref.actor"
HALVES = {f"{ACTOR}.ppo_mini_batch_size": 1}
"""One of the two rows in each update."""
RUNS: dict[str, tuple[dict[str, Any], int]] = {
    "dapo": (HALVES, 2),
    "dr_grpo": ({}, 1),
    "gspo": (HALVES, 2),
    "cispo": (HALVES, 2),
    "tis": ({}, 1),
    "warm_start": ({}, 1),
    "gspo of single turns": ({f"{ACTOR}.ppo_mini_batch_size": 2, f"{ACTOR}.ppo_epochs": 2}, 2),
}
"""What each run changes after its recipe, and the number of its updates."""


@pytest.mark.parametrize("name", RUNS)
def test_a_recipe_trains(name: str, tmp_path: Path) -> None:
    (changed, updates), recipe = RUNS[name], name.split()[0]
    environment = JUDGED | ({"strategy": "single_turn"} if "single" in name else {})
    overrides = prepare_training(tmp_path, environment, SHOUT_PLUM, samples=SAMPLES)
    overrides |= {"recipe": recipe, f"{ACTOR}.optim.lr": 1e-3} | changed
    seeing = {"VERL_USE_EXTERNAL_MODULES": "seen_updates", "SEEN_UPDATES": str(tmp_path / "updates.jsonl")}
    done = train(tmp_path, overrides, PYTHONPATH=str(Path(__file__).parent), **seeing)
    assert done.returncode == 0, done.stdout[-8000:]
    (step,) = logged(tmp_path).values()
    seen = list(map(json.loads, (tmp_path / "updates.jsonl").read_text().splitlines()))
    assert sum("optimizer_step" in update for update in seen) == updates
    records = read_records(tmp_path / "traces")
    assert (step["actor/grad_norm"] > 0) == rewards_differ(records) and step["mcp/failed_share"] == 0
    # The engine computes as the trainer does, so that every weight of a correction is 1.
    weighed = {name: value for name, value in step.items() if name.startswith("rollout_corr/rollout_is_mean")}
    assert bool(weighed) == (recipe == "tis") and all(abs(value - 1) < 1e-3 for value in weighed.values())
    assert (step["mcp/samples_per_trajectory"] > 1) == ("single" in name)
    assert ("actor/kl_loss" in step) == (recipe == "warm_start")
