"""Two GRPO steps on a handful of the leaderboard's tasks, through verl's stock trainer on the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from engine_log import read_records
from taught_model import teach
from verl_run import logged, train

from mcp_rollout.mcp_servers.bfcl.documents import load_functions
from mcp_rollout.mcp_servers.bfcl.server import play
from mcp_rollout.mcp_servers.bfcl.tasks import find_task
from mcp_rollout.rollout.environment.parquet import read_rows
from mcp_rollout.rollout.environment.task import Task

pytestmark = [pytest.mark.verl, pytest.mark.full, pytest.mark.timeout(1700)]

ROOT = Path(__file__).parents[3]
COMMAND = Path(sys.executable).with_name("mcp-rollout")
TASKS = ("multi_turn_base_100", "multi_turn_base_104")
"""Two user turns each, over the 20 tools of one class; the model is taught the first one, and a wrong call there."""
ROWS, SAMPLES, STEPS = len(TASKS), 8, 2


@dataclass(frozen=True)
class Run:
    metrics: dict[int, dict[str, Any]]
    records: list[dict[str, Any]]
    """The traces."""


def taught_conversation(name: str) -> list[dict[str, Any]]:
    """The expert's messages for a task, with made-up results: what is learnt are the calls."""
    task, functions = find_task(name), load_functions()
    messages: list[dict[str, Any]] = [{"role": "user", "content": task.message(0, functions)}]
    user_turn = 0
    for turn in play(task, functions):
        if turn.calls is None:
            user_turn += 1
            messages.append({"role": "assistant", "content": turn.content})
            if user_turn < len(task.questions):
                messages.append({"role": "user", "content": task.message(user_turn, functions)})
            continue
        calls = [{"function": {"name": call.name, "arguments": call.arguments}} for call in turn.calls]
        messages.append({"role": "assistant", "content": "", "tool_calls": calls})
        messages += [{"role": "tool", "content": "{}"} for _ in turn.calls]
    return messages


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    home = tmp_path_factory.mktemp("bfcl")
    every, rows, lock = home / "every.parquet", home / "rows.parquet", home / "lock.yaml"
    subprocess.run([COMMAND, "data", "bfcl", "--split", "all", "-o", every], cwd=ROOT, check=True)
    subprocess.run([COMMAND, "tool-config", "bfcl", "-o", lock], cwd=ROOT, check=True)
    table = pq.read_table(every)
    numbers = [at for at, row in enumerate(read_rows(every)) if row["extra_info"]["mcp"]["task"] in TASKS]
    pq.write_table(table.take(numbers), rows)
    (first, *_) = [Task.from_row(row) for row in read_rows(rows)]
    functions = load_functions()
    shown = [json.loads(functions[name].rendered) for name in first.tools or ()]
    taught = taught_conversation(TASKS[0])
    mistaken = json.loads(json.dumps(taught).replace("NVDA", "AAPL"))
    assert mistaken != taught
    overrides = {
        "data.train_files": rows,
        "data.val_files": rows,
        "data.train_batch_size": ROWS,
        "data.max_prompt_length": 8192,
        "data.max_response_length": 768,
        "actor_rollout_ref.model.path": teach(home / "model", taught, shown, steps=250, or_else=mistaken),
        "actor_rollout_ref.rollout.n": SAMPLES,
        "actor_rollout_ref.rollout.temperature": 0.7,
        "actor_rollout_ref.rollout.multi_turn.tool_config_path": lock,
        "actor_rollout_ref.rollout.custom.mcp.environments_dir": ROOT / "configs" / "environments",
        "++actor_rollout_ref.rollout.custom.mcp.environment.limits.tokens_per_turn": 96,
        "++actor_rollout_ref.rollout.custom.mcp.environment.reward.weights": "{score: 0.5, user_turns: 0.5}",
        "trainer.total_epochs": STEPS,
        "trainer.total_training_steps": STEPS,
    }
    done = train(home, overrides, timeout_s=1500)
    assert done.returncode == 0, done.stdout[-8000:]
    return Run(logged(home), read_records(home / "traces"))


def test_both_steps_train_on_whole_batches(run: Run) -> None:
    assert sorted(run.metrics) == [1, 2]
    assert len(run.records) == STEPS * ROWS * SAMPLES
    assert {record["task"]["task"] for record in run.records} == set(TASKS)
    assert all(metrics["mcp/failed_share"] == 0 for metrics in run.metrics.values())


def test_the_policy_calls_functions_and_is_scored_by_the_leaderboards_checker(run: Run) -> None:
    assert any(
        event["server"] == "bfcl" for record in run.records for turn in record["turns"] for event in turn["tools"]
    )
    shares = {record["reward"]["parts"]["user_turns"] for record in run.records}
    assert shares <= {0.0, 0.5, 1.0} and len(shares) > 1
    for record in run.records:
        share = record["reward"]["parts"]["user_turns"]
        assert record["reward"]["score"] == pytest.approx(0.5 * share + 0.5 * (share == 1.0))


def test_a_group_with_unequal_rewards_moves_the_weights(run: Run) -> None:
    assert max(metrics["actor/grad_norm"] for metrics in run.metrics.values()) > 0
