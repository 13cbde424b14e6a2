"""GRPO with actor and engine on one device or on two, in float32 or bfloat16: every token held against the log."""

from __future__ import annotations

from pathlib import Path

import pytest
from agent_training import assert_every_token_is_the_engines_or_rendered, assert_trained_on
from echo_training import JUDGED, ROWS, SHOUT_PLUM, prepare_training
from engine_log import read_generations, read_records
from verl_run import gpu_engine, logged, train

pytestmark = [pytest.mark.verl, pytest.mark.timeout(900)]

STEPS, SAMPLES = 2, 4


@pytest.mark.parametrize(
    ("platform", "generates_on", "dtype", "apart"),
    [
        pytest.param("cpu", "cpu", "bfloat16", 1e-2, marks=pytest.mark.full),
        pytest.param("nvidia", "cuda", "float32", 1e-4, marks=pytest.mark.gpu),
        pytest.param("nvidia", "cpu", "float32", 1e-4, marks=pytest.mark.gpu),
        pytest.param("nvidia", "cuda", "bfloat16", 1e-2, marks=pytest.mark.gpu),
    ],
)
def test_the_trainer_gets_what_the_engine_logged(
    platform: str, generates_on: str, dtype: str, apart: float, tmp_path: Path
) -> None:
    """The model calls a tool. Step 2 is sampled with the weights of the first update, or probabilities lie apart."""
    overrides = {
        **prepare_training(tmp_path, JUDGED, SHOUT_PLUM, samples=SAMPLES),
        **gpu_engine(generates_on, dtype),
        **({"engine": "cpu_135m"} if platform == "cpu" else {}),
        "actor_rollout_ref.actor.optim.lr": 1e-3,
        "actor_rollout_ref.actor.entropy_coeff": 0.01,  # moves the weights where a whole group earns the same, too
        "actor_rollout_ref.rollout.custom.mcp.record_trained": True,
        "actor_rollout_ref.rollout.engine_kwargs.transformers_cpu.engine_log": tmp_path / "engine.jsonl",
        "trainer.total_training_steps": STEPS,
    }
    done = train(tmp_path, overrides)
    assert done.returncode == 0, done.stdout[-8000:]
    records = read_records(tmp_path / "traces")
    assert len(records) == STEPS * ROWS * SAMPLES
    assert any(event["text"] == "PLUM" for record in records for turn in record["turns"] for event in turn["tools"])
    assert_every_token_is_the_engines_or_rendered(records, read_generations(tmp_path / "engine.jsonl"))
    assert_trained_on(tmp_path, records)
    for step in range(1, STEPS + 1):
        metrics = logged(tmp_path)[step]
        assert metrics["actor/grad_norm"] > 0 and metrics["training/rollout_probs_diff_valid"] == 1
        assert metrics["training/rollout_probs_diff_mean"] < apart
