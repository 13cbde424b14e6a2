"""verl's own trainer, unmodified, trains a tiny model on this machine's CPU: a stock agent, our configuration."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModelForCausalLM
from verl_run import logged, train

from rollout.verl_cpu.tiny_model import make_tiny_model

pytestmark = [pytest.mark.verl, pytest.mark.full, pytest.mark.timeout(600)]

HERE = Path(__file__).parent
ROWS, SAMPLES, TEMPERATURE = 2, 4, 0.25

REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None, **_):
    return sum(map(str.isalpha, solution_str)) / max(len(solution_str), 1)
"""


@dataclass(frozen=True)
class Run:
    model: Path
    metrics: dict[int, dict[str, Any]]
    """What verl's `file` logger wrote, by step."""
    generations: list[dict[str, Any]]
    """What the engine wrote."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Three GRPO steps in one run; the rollout loses the weights of step 2, which step 3 samples with."""
    home = tmp_path_factory.mktemp("verl")
    make_tiny_model(home / "model", hidden=64, layers=2)
    (home / "reward.py").write_text(REWARD)
    rows = [
        {
            "data_source": "letters",
            "prompt": [{"role": "user", "content": f"What is {number} plus {number}?"}],
            "agent_name": "single_turn_agent",
            "reward_model": {"ground_truth": ""},
            "extra_info": {"index": number},
        }
        for number in range(3 * ROWS)
    ]
    pq.write_table(pa.Table.from_pylist(rows), home / "rows.parquet")
    overrides = {
        "data.train_files": home / "rows.parquet",
        "data.train_batch_size": ROWS,
        "data.max_prompt_length": 128,
        "data.max_response_length": 48,
        "actor_rollout_ref.model.path": home / "model",
        "actor_rollout_ref.actor.optim.lr": 3e-2,  # one step must show clearly in the next one's probabilities
        "actor_rollout_ref.rollout.name": "dropped_sync",
        "actor_rollout_ref.rollout.n": SAMPLES,
        "actor_rollout_ref.rollout.temperature": TEMPERATURE,
        "actor_rollout_ref.rollout.engine_kwargs.transformers_cpu.engine_log": home / "engine.jsonl",
        "reward.custom_reward_function.path": home / "reward.py",
        "trainer.total_training_steps": 3,
    }
    # Socket paths are limited to 107 bytes.
    environment = {"VERL_USE_EXTERNAL_MODULES": "dropped_sync", "PYTHONPATH": str(HERE), "RAY_TMPDIR": "/tmp"}
    done = train(home, overrides, **environment)
    assert done.returncode == 0, done.stdout[-8000:]
    generations = list(map(json.loads, (home / "engine.jsonl").read_text().splitlines()))
    return Run(home / "model", logged(home), generations)


def test_every_step_trains_on_a_whole_batch(run: Run) -> None:
    assert sorted(run.metrics) == [1, 2, 3]
    assert len(run.generations) == 3 * ROWS * SAMPLES
    for metrics in run.metrics.values():
        assert metrics["actor/grad_norm"] > 0


def test_the_rollout_samples_with_the_weights_that_the_trainer_has(run: Run) -> None:
    """Step 1 has the initial weights, of which the server started without a copy; step 2 has trained ones."""
    for step in (1, 2):
        assert run.metrics[step]["training/rollout_probs_diff_valid"] == 1
        assert run.metrics[step]["training/rollout_probs_diff_mean"] < 1e-4


def test_a_lost_weight_synchronisation_shows_in_that_number(run: Run) -> None:
    assert run.metrics[3]["training/rollout_probs_diff_mean"] > 1e-3


def test_the_engine_log_names_the_weights_of_every_generation(run: Run) -> None:
    versions = [record["weights_version"] for record in run.generations]
    # The lost synchronisation is the one after step 2: step 3 is sampled with version 1.
    assert sorted(versions) == [[0, 0]] * ROWS * SAMPLES + [[1, 1]] * 2 * ROWS * SAMPLES


@torch.inference_mode()
def test_the_logged_logprobs_can_be_derived_again_from_the_model(run: Run) -> None:
    model = AutoModelForCausalLM.from_pretrained(run.model).eval()
    initial = [record for record in run.generations if record["weights_version"] == [0, 0]]
    for record in initial:
        logits = model(input_ids=torch.tensor([record["prompt_ids"] + record["token_ids"]])).logits[0]
        scaled = (logits / TEMPERATURE).log_softmax(-1)[len(record["prompt_ids"]) - 1 : -1]
        expected = scaled.gather(1, torch.tensor(record["token_ids"])[:, None]).squeeze(1)
        assert record["log_probs"] == pytest.approx(expected.tolist(), abs=1e-5)
