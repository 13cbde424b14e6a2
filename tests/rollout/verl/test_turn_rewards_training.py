"""A turn's own reward on its way through verl's v1 trainer: agent loop, worker, token-level rewards, REINFORCE++.

Beside it a reward function of verl's, as its users write them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from echo_training import JUDGED, SHOUT_PLUM, prepare_training
from engine_log import read_records
from verl_run import logged, train

pytestmark = [pytest.mark.verl, pytest.mark.full, pytest.mark.timeout(900)]

HERE = Path(__file__).parent
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
CUSTOMER = {
    "command": "${python}",
    "args": ["-m", "mcp_rollout.mcp_servers.user_simulator", "scripted", "--scenarios", "${here}/scenarios.json"],
    "trusted": True,
}
ENVIRONMENT = {**JUDGED, "servers": {**JUDGED["servers"], "customer": CUSTOMER}, "user": {"server": "customer"}}
CONVERSATION: list[dict[str, Any]] = [
    *SHOUT_PLUM,
    {"role": "user", "content": "Shout pear."},
    {"role": "assistant", "content": "PEAR"},
]
# What a user of verl's has: a file that knows nothing of this project, and reads what is handed over.
REWARD = """
import json, os


async def compute_score(data_source, solution_str, ground_truth, extra_info, where, **kwargs):
    played = extra_info["mcp_trajectory"]
    seen = {
        "trace": played["trace"].id,
        "data_source": data_source,
        "solution": solution_str,
        "index": played["row"]["index"],
        "task": extra_info["mcp"]["task"],
        "messages": played["messages"],
        "results": [event.text for turn in played["trace"].turns for event in turn.tools],
        "score": played["world"].score,
    }
    with open(where, "a") as file:
        file.write(json.dumps(seen) + "\\n")
    calls = len(seen["results"])
    return {"score": 0.125 * calls, "acc": float(calls > 0), "said": "called" if calls else "silent"}
"""


@dataclass(frozen=True)
class Run:
    metrics: dict[str, Any]
    validation: dict[str, Any]
    records: list[dict[str, Any]]
    """The traces."""
    seen: list[dict[str, list[float]]]
    """What the trainer's estimator was given and made of it, by sample."""
    handed: dict[str, dict[str, Any]]
    """By trace, what the reward function was given."""
    printed: str


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    home = tmp_path_factory.mktemp("turn_rewards")
    (home / "environments").mkdir()
    (home / "environments" / "scenarios.json").write_text(json.dumps({"*": SCENARIO}))
    overrides = prepare_training(home, ENVIRONMENT, CONVERSATION, samples=SAMPLES)
    (home / "reward.py").write_text(REWARD)
    overrides |= {
        "algorithm.adv_estimator": "seen_reinforce_plus_plus",
        "reward.custom_reward_function.path": home / "reward.py",
        "+reward.custom_reward_function.reward_kwargs.where": home / "handed.jsonl",
        "actor_rollout_ref.rollout.custom.mcp.custom_reward": "add",
        "trainer.val_before_train": True,
        "actor_rollout_ref.actor.use_kl_loss": True,
    }
    environment = {
        "VERL_USE_EXTERNAL_MODULES": "seen_advantages",
        "PYTHONPATH": str(HERE),
        "SEEN_ADVANTAGES": str(home / "seen.jsonl"),
    }
    done = train(home, overrides, **environment)
    assert done.returncode == 0, done.stdout[-8000:]
    seen = [json.loads(line) for line in (home / "seen.jsonl").read_text().splitlines()]
    handed = {each["trace"]: each for each in map(json.loads, (home / "handed.jsonl").read_text().splitlines())}
    metrics, records = logged(home), read_records(home / "traces")
    trained = [record for record in records if not record["origin"]["validate"]]
    assert handed.keys() == {record["id"] for record in records}
    yield Run(metrics[1], metrics[0], trained, seen, handed, done.stdout)


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


def test_verls_reward_function_is_given_the_row_the_conversation_and_the_calls(run: Run) -> None:
    for record in run.records:
        given = run.handed[record["id"]]
        assert (given["data_source"], given["task"], given["index"]) == ("echo", "t", record["origin"]["row"])
        assert given["results"] == [event["text"] for turn in record["turns"] for event in turn["tools"]]
        assert [message["role"] for message in given["messages"]] == [
            message["role"] for message in record["messages"][: len(given["messages"])]
        ]
        assert all(text in given["solution"] for text in given["results"])


def test_verls_reward_function_is_added_to_the_servers_score_and_the_turns(run: Run) -> None:
    for record in run.records:
        reward, calls = record["reward"], sum(len(turn["tools"]) for turn in record["turns"])
        assert reward["parts"]["mcp_custom"] == 0.125 * calls and reward["parts"]["acc"] == float(calls > 0)
        score = run.handed[record["id"]]["score"]
        assert reward["score"] == pytest.approx(score + sum(reward["turns"]) + 0.125 * calls)
    custom = [record["reward"]["parts"]["mcp_custom"] for record in run.records]
    assert max(custom) > 0 and run.metrics["mcp/reward/echo/mcp_custom"] == pytest.approx(sum(custom) / len(custom))


def test_validation_has_what_verls_reward_function_returned(run: Run) -> None:
    assert {"val-core/echo/acc/mean@1", "val-aux/echo/mcp_custom/mean@1", "val-aux/echo/letters/mean@1"} <= {
        *run.validation
    }


def test_the_divergence_from_the_reference_begins_at_0_and_its_log_probabilities_are_of_the_actors_type(
    run: Run,
) -> None:
    assert abs(run.metrics["actor/kl_loss"]) < 1e-6 and run.metrics["actor/kl_coef"] > 0
    assert "dtype mismatch" not in run.printed
