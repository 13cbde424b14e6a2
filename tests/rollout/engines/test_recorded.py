"""A model's trajectories again, without the model: its ids and log-probabilities, by its own tokenizer."""

from __future__ import annotations

from pathlib import Path

from replaying import all_timeless

from mcp_rollout.rollout.cli.run import run
from mcp_rollout.rollout.trace.store import read_traces

CALCULATOR = str(Path(__file__).parents[3] / "configs" / "environments" / "calculator.yaml")


def test_the_run_of_a_model_is_repeated_without_model_and_servers(tmp_path: Path, model: Path) -> None:
    tape, first, again = tmp_path / "a.jsonl", tmp_path / "first", tmp_path / "again"
    run([CALCULATOR], engine=str(model), out=first, rows=2, samples=2, max_tokens=60, record=tape)
    # Of the model only the tokenizer and its configuration are left.
    for weights in model.glob("*.safetensors"):
        weights.rename(tmp_path / weights.name)
    try:
        run([CALCULATOR], engine=f"recorded:{first}", out=again, rows=2, samples=2, max_tokens=60, replay=tape)
    finally:
        for weights in tmp_path.glob("*.safetensors"):
            weights.rename(model / weights.name)
    recorded, replayed = list(read_traces(first)), list(read_traces(again))
    assert all_timeless(replayed, without_engine=True) == all_timeless(recorded, without_engine=True)
    assert {trace.origin.engine for trace in replayed} == {f"recorded:transformers:{model}"}
    assert all(trace.has_logprobs and any(trace.logprobs) and trace.reward for trace in replayed)
    assert len(replayed) == 4
