"""A turn's own reward on its way through verl's v1 trainer: agent loop, worker, token-level rewards, REINFORCE++."""

from __future__ import annotations

import json
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
from engine_log import read_records
from taught_model import teach
from verl_run import logged, train

from gateway.catalogue.tool_config import read_lock

pytestmark = [pytest.mark.verl, pytest.mark.full, pytest.mark.timeout(900)]

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
SAMPLES = 4
ANY = {"when": [r"[\s\S]"]}
SCENARIO = {
    "opening": "Shout plum.",
    "first": "plum",
    "steps": {
        "plum": {"cues": [{**ANY, "says": "Shout pear.", "to": "pear", "reward": 0.25}], "otherwise": ["?"]},
        "pear": {"cues": [{**ANY, "says": "Goodbye.", "to": "end", "reward": 0.5}], "otherwise": ["?"]},
    },
}
ENVIRONMENT = {
    "servers": {
        "echo": {
            "command": "${python}",
            "args": [str(ROOT / "tests" / "support" / "echo_server.py")],
            "roles": {"score": "judge"},
            "tools": {"allow": ["shout", "judge"]},
        },
        "customer": {
            "command": "${python}",
            "args": ["-m", "mcp_servers.user_simulator", "scripted", "--scenarios", "${here}/scenarios.json"],
            "trusted": True,
        },
    },
    "user": {"server": "customer"},
    "reward": {"server": "echo", "parts": ["letters"]},
}
CONVERSATION: list[dict[str, Any]] = [
    {"role": "user", "content": "Shout plum."},
    {"role": "assistant", "tool_calls": [{"function": {"name": "shout", "arguments": {"text": "plum"}}}]},
    {"role": "tool", "content": "PLUM"},
    {"role": "assistant", "content": "PLUM"},
    {"role": "user", "content": "Shout pear."},
    {"role": "assistant", "content": "PEAR"},
]


@dataclass(frozen=True)
class Run:
    metrics: dict[str, Any]
    records: list[dict[str, Any]]
    """The traces."""
    seen: list[dict[str, list[float]]]
    """What the trainer's estimator was given and made of it, by sample."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    home = tmp_path_factory.mktemp("dense")
    (home / "environments").mkdir()
    (home / "environments" / "echo.yaml").write_text(yaml.safe_dump(ENVIRONMENT))
    (home / "environments" / "scenarios.json").write_text(json.dumps({"*": SCENARIO}))
    mcp = {"environment": "echo", "task": "t", "seed": 1, "tools": ["shout"]}
    rows = [
        {
            "data_source": "echo",
            "agent_name": "mcp_agent",
            "prompt": CONVERSATION[:1],
            "reward_model": {"style": "rule", "ground_truth": ""},
            "extra_info": {"index": index, "mcp": mcp},
        }
        for index in range(2)
    ]
    pq.write_table(pa.Table.from_pylist(rows), home / "rows.parquet")
    cli = [sys.executable, "-m", "rollout.cli", "tool-config", home / "environments" / "echo.yaml"]
    subprocess.run([*cli, "-o", home / "lock.yaml"], check=True, cwd=ROOT)
    tools = [entry.definition.openai_schema() for entry in read_lock(home / "lock.yaml")]
    overrides = {
        "data.train_files": home / "rows.parquet",
        "data.val_files": home / "rows.parquet",
        "data.train_batch_size": len(rows),
        "data.max_prompt_length": 1024,
        "data.max_response_length": 320,
        "algorithm.adv_estimator": "seen_reinforce_plus_plus",
        "actor_rollout_ref.model.path": teach(home / "model", CONVERSATION, tools),
        "actor_rollout_ref.rollout.n": SAMPLES,
        "actor_rollout_ref.rollout.multi_turn.tool_config_path": home / "lock.yaml",
        "actor_rollout_ref.rollout.custom.mcp.environments_dir": home / "environments",
        "actor_rollout_ref.rollout.custom.mcp.tokens_per_turn": 64,
        "trainer.total_training_steps": 1,
    }
    environment = {
        "VERL_USE_EXTERNAL_MODULES": "seen_advantages",
        "PYTHONPATH": f"{HERE}:{ROOT}",
        "SEEN_ADVANTAGES": str(home / "seen.jsonl"),
    }
    done = train(home, overrides, **environment)
    assert done.returncode == 0, done.stdout[-8000:]
    seen = [json.loads(line) for line in (home / "seen.jsonl").read_text().splitlines()]
    yield Run(logged(home)[1], read_records(home / "traces"), seen)


def earned_at(record: dict[str, Any]) -> list[float]:
    """By token of the response, what was earned there: a turn's own at its last trained token, the rest at the end."""
    placed = [0.0] * len(record["response_ids"])
    ends = {
        span["turn"]: position
        for span in record["spans"]
        for position in range(span["start"], span["end"])
        if record["loss_mask"][position]
    }
    turns = record["reward"]["turns"] or [0.0] * len(record["turns"])
    for turn, earned in enumerate(turns):
        placed[ends[turn]] += earned
    placed[ends[len(turns) - 1]] += record["reward"]["score"] - sum(turns)
    return placed


def pairs(run: Run) -> Iterator[tuple[dict[str, Any], dict[str, list[float]]]]:
    """Each trace with what the trainer had of it; the trainer's rows are padded, and in an order of their own."""
    left = list(run.seen)
    for record in run.records:
        mask = record["loss_mask"]
        wanted = pytest.approx(earned_at(record), abs=1e-6)
        found = next(row for row in left if row["mask"][: len(mask)] == mask and row["rewards"][: len(mask)] == wanted)
        left.remove(found)
        assert not any(found["rewards"][len(mask) :]) and not any(found["mask"][len(mask) :])
        yield record, found
    assert left == []


def test_users_rewarded_single_turns(run: Run) -> None:
    assert len(run.records) == 2 * SAMPLES and run.metrics["mcp/failed_share"] == 0
    rewarded = [record["reward"]["turns"] for record in run.records if any(record["reward"]["turns"])]
    assert len(rewarded) > SAMPLES
    assert any([reward for reward in turns if reward] == [0.25, 0.5] for turns in rewarded)


def test_the_trainer_has_every_reward_at_the_token_that_ended_the_turn_which_earned_it(run: Run) -> None:
    assert len(list(pairs(run))) == len(run.records)
    assert run.metrics["critic/rewards/mean"] == pytest.approx(
        sum(record["reward"]["score"] for record in run.records) / len(run.records), abs=1e-5
    )


def test_a_token_is_credited_with_what_came_after_it_and_with_nothing_from_before(run: Run) -> None:
    told_apart = 0
    for record, row in pairs(run):
        earned, trained = earned_at(record), [at for at, counts in enumerate(record["loss_mask"]) if counts]
        for at in trained:
            assert row["returns"][at] == pytest.approx(sum(earned[at:]), abs=1e-5)
        if any(record["reward"]["turns"][:-1]):
            assert row["advantages"][trained[0]] > row["advantages"][trained[-1]]
            told_apart += 1
    assert told_apart > 0
