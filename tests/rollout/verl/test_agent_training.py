"""Two GRPO steps through verl's v1 trainer with two agents of an environment's own, which share the batches."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from engine_log import derive, read_generations, read_records
from taught_model import teach
from verl_run import logged, train

from gateway.catalogue.tool_config import read_lock
from rollout.agents.reflect import CRITIQUE
from rollout.agents.retry_with_feedback import FEEDBACK

pytestmark = [pytest.mark.verl, pytest.mark.full, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[3]
STEPS, SAMPLES = 2, 4
COMMAND = Path(sys.executable).with_name("mcp-rollout")
AGENTS = {
    "retry": {"use": "rollout.agents.retry_with_feedback:RetryWithFeedback", "with": {"attempts": 3}},
    "reflect": {"use": "rollout.agents.reflect:Reflect"},
}


@dataclass(frozen=True)
class Run:
    metrics: dict[int, dict[str, Any]]
    records: list[dict[str, Any]]
    generations: list[dict[str, Any]]

    def of(self, environment: str) -> list[dict[str, Any]]:
        return [record for record in self.records if record["task"]["environment"] == environment]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    home = tmp_path_factory.mktemp("agents")
    environments, lock = home / "environments", home / "lock.yaml"
    environments.mkdir()
    raw = yaml.safe_load((ROOT / "configs" / "environments" / "gsm8k_tools.yaml").read_text())
    tables: list[Any] = []
    for name, agent in AGENTS.items():
        (environments / f"{name}.yaml").write_text(yaml.safe_dump(raw | {"agent": agent}))
        rows = home / f"{name}.parquet"
        written = ["--environments-dir", environments, "--split", "train", "-n", str(STEPS), "-o", rows]
        subprocess.run([COMMAND, "data", name, *written], check=True)
        tables += [pq.read_table(rows)]
    # Each batch has a row of each environment.
    mixed = pa.concat_tables(tables).take([step + STEPS * which for step in range(STEPS) for which in range(2)])
    pq.write_table(mixed, home / "rows.parquet")
    subprocess.run([COMMAND, "tool-config", *sorted(environments.glob("*.yaml")), "-o", lock], check=True)
    tools = {entry.definition.name: entry.definition.openai_schema() for entry in read_lock(lock)}
    overrides = {
        "data.train_files": home / "rows.parquet",
        "data.val_files": home / "rows.parquet",
        "data.train_batch_size": 2,
        "data.shuffle": False,
        "data.max_prompt_length": 1024,
        "data.max_response_length": 640,
        "actor_rollout_ref.model.path": teach(home / "model", conversation(mixed), list(tools.values())),
        "actor_rollout_ref.actor.optim.lr": 1e-3,
        # The taught policy earns the same reward in a whole group; an update needs something to follow.
        "actor_rollout_ref.actor.entropy_coeff": 0.01,
        "actor_rollout_ref.rollout.n": SAMPLES,
        "actor_rollout_ref.rollout.multi_turn.tool_config_path": lock,
        "actor_rollout_ref.rollout.custom.mcp.environments_dir": environments,
        "actor_rollout_ref.rollout.custom.mcp.tokens_per_turn": 64,
        "actor_rollout_ref.rollout.engine_kwargs.transformers_cpu.engine_log": home / "engine.jsonl",
        "trainer.total_training_steps": STEPS,
    }
    done = train(home, overrides)
    assert done.returncode == 0, done.stdout[-8000:]
    yield Run(logged(home), read_records(home / "traces"), read_generations(home / "engine.jsonl"))


def conversation(rows: Any) -> list[dict[str, Any]]:
    """What the model learns by heart: a calculation, an answer, and that it answers anew when it is asked to."""
    call = {"function": {"name": "calculate", "arguments": {"expression": "2 + 3"}}}
    again = [{"role": "user", "content": said} for said in (CRITIQUE, f"That is not right.\n\n{FEEDBACK}")]
    answer = {"role": "assistant", "content": "Answer: 5"}
    opening = rows.slice(0, 1).to_pylist()[0]["prompt"]
    called = [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "5"}]
    return [*opening, *called, answer, again[0], answer, again[1], answer]


def test_both_agents_were_trained_in_both_steps(run: Run) -> None:
    assert sorted(run.metrics) == list(range(1, STEPS + 1))
    for step, metrics in run.metrics.items():
        assert metrics["mcp/failed_share"] == 0 and metrics["actor/grad_norm"] > 0
        for name, agent in AGENTS.items():
            played = [record for record in run.of(name) if record["origin"]["step"] == step]
            assert len(played) == SAMPLES
            assert all(record["agent"] == {"with": {}, **agent} for record in played)


def test_the_agents_spoke_to_the_policy(run: Run) -> None:
    for name, text in (("retry", FEEDBACK), ("reflect", CRITIQUE)):
        said = [turn["agent_message"] for record in run.of(name) for turn in record["turns"]]
        assert {each for each in said if each} == {text}


def test_every_token_is_the_engines_or_rendered_and_only_sampled_ones_are_in_the_loss(run: Run) -> None:
    left = list(run.generations)
    for record in run.records:
        ids, mask, logprobs = derive(record, left)
        assert record["response_ids"][: len(ids)] == ids
        assert record["loss_mask"] == mask + [0] * (len(record["response_ids"]) - len(ids))
        assert record["logprobs"][: len(ids)] == logprobs
    assert left == []


def test_the_trainer_finds_the_engines_probabilities_after_an_update(run: Run) -> None:
    for metrics in run.metrics.values():
        assert metrics["training/rollout_probs_diff_valid"] == 1
        assert metrics["training/rollout_probs_diff_mean"] < 1e-4
