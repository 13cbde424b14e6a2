"""Two GRPO steps through verl's v1 trainer, the trajectories played by openai-agents, unchanged: a process for each."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from engine_log import derive, read_generations, read_records
from taught_model import teach
from verl_run import logged, train

from gateway.catalogue.tool_config import read_lock

pytestmark = [pytest.mark.verl, pytest.mark.full, pytest.mark.timeout(2400)]

ROOT = Path(__file__).parents[3]
STEPS, SAMPLES = 2, 4
COMMAND = Path(sys.executable).with_name("mcp-rollout")
PYTHON = ROOT / ".venv-clients" / "mcp2" / "bin" / "python"
DRIVER = ROOT / "tests" / "third_party" / "clients" / "openai_agents_program.py"
AGENT = {
    "use": "rollout.programs.program:Program",
    "with": {"command": [str(PYTHON), str(DRIVER), "${model.url}", "${mcp.url}", "chat", "whole", "${prompt}"]},
}


@dataclass(frozen=True)
class Run:
    metrics: dict[int, dict[str, Any]]
    records: list[dict[str, Any]]
    generations: list[dict[str, Any]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    assert PYTHON.exists(), f"{PYTHON} is missing: run `make clients`"
    home = tmp_path_factory.mktemp("programs")
    environments, lock, rows = home / "environments", home / "lock.yaml", home / "rows.parquet"
    environments.mkdir()
    raw = yaml.safe_load((ROOT / "configs" / "environments" / "calculator.yaml").read_text())
    raw["limits"]["wall_clock_s"] = 900
    (environments / "sums.yaml").write_text(yaml.safe_dump(raw | {"agent": AGENT}))
    written = ["--environments-dir", environments, "--split", "train", "-n", str(STEPS), "-o", rows]
    subprocess.run([COMMAND, "data", "sums", *written], check=True)
    subprocess.run([COMMAND, "tool-config", environments / "sums.yaml", "-o", lock], check=True)
    tools = {entry.definition.name: entry.definition.openai_schema() for entry in read_lock(lock)}
    overrides = {
        "data.train_files": rows,
        "data.val_files": rows,
        "data.train_batch_size": 1,
        "data.shuffle": False,
        "data.max_prompt_length": 2048,
        "data.max_response_length": 640,
        "actor_rollout_ref.model.path": teach(home / "model", conversation(rows), list(tools.values())),
        "actor_rollout_ref.actor.optim.lr": 1e-3,
        "actor_rollout_ref.actor.entropy_coeff": 0.01,
        "actor_rollout_ref.rollout.n": SAMPLES,
        "actor_rollout_ref.rollout.multi_turn.tool_config_path": lock,
        "actor_rollout_ref.rollout.custom.mcp.environments_dir": environments,
        "actor_rollout_ref.rollout.custom.mcp.tokens_per_turn": 64,
        "actor_rollout_ref.rollout.engine_kwargs.transformers_cpu.engine_log": home / "engine.jsonl",
        "trainer.total_training_steps": STEPS,
    }
    done = train(home, overrides, timeout_s=2300)
    assert done.returncode == 0, done.stdout[-8000:]
    yield Run(logged(home), read_records(home / "traces"), read_generations(home / "engine.jsonl"))


def conversation(rows: Path) -> list[dict[str, Any]]:
    """What the model learns by heart: a call and an answer, in the conversation as openai-agents tells it."""
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": 3}}}
    task = pq.read_table(rows).slice(0, 1).to_pylist()[0]["prompt"][-1]
    opening = [{"role": "system", "content": "Use the tools."}, task]
    called = [{"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "content": "5"}]
    return [*opening, *called, {"role": "assistant", "content": "Answer: 5"}]


def test_an_unchanged_program_was_trained_in_both_steps(run: Run) -> None:
    assert sorted(run.metrics) == list(range(1, STEPS + 1))
    for step, metrics in run.metrics.items():
        assert metrics["mcp/failed_share"] == 0 and metrics["actor/grad_norm"] > 0
        played = [record for record in run.records if record["origin"]["step"] == step]
        assert len(played) == SAMPLES and all(record["agent"] == AGENT for record in played)
        assert len({json.dumps(record["prompt_ids"]) for record in played}) == 1


def test_every_token_is_the_engines_or_rendered_and_only_sampled_ones_are_in_the_loss(run: Run) -> None:
    left = list(run.generations)
    for record in run.records:
        assert not record["earlier"]
        ids, mask, logprobs = derive(record, left)
        assert record["response_ids"][: len(ids)] == ids
        assert record["loss_mask"] == mask + [0] * (len(record["response_ids"]) - len(ids))
        assert record["logprobs"][: len(ids)] == logprobs
    assert left == []
    assert any(turn["tools"] for record in run.records for turn in record["turns"])
