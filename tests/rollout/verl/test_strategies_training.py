"""Three GRPO steps of each strategy through verl's own trainer loop, held against the engine's log."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
from agent_training import assert_trained_on
from echo_training import CONVERSED, SHOUT_PLUM, prepare_training
from engine_log import compare, read_generations, read_records, recorded, rewards_differ, samples_of
from verl_run import logged, train

from mcp_rollout.rollout.trace.trained import read_trained

pytestmark = [pytest.mark.verl, pytest.mark.full, pytest.mark.timeout(3600)]

LEAVES, STEPS, ROWS = 4, 3, 2
CONVERSATION: list[dict[str, Any]] = [
    *SHOUT_PLUM,
    {"role": "user", "content": "Shout pear 1."},
    {"role": "assistant", "content": "PEAR"},
]
RUNS: dict[str, tuple[dict[str, Any], str]] = {
    "chain": ({"use": "chain"}, "grpo"),
    "single_turn": ({"use": "single_turn"}, "grpo"),
    "tree with tree_grpo": ({"use": "tree", "tree": {"roots": 2}}, "tree_grpo"),
    "single_turn with step_grpo": ({"use": "single_turn"}, "step_grpo"),
}
"""Strategy and estimator of each run."""


@dataclass(frozen=True)
class Run:
    home: Path
    strategy: str
    estimator: str
    metrics: dict[int, dict[str, Any]]
    records: list[dict[str, Any]]
    generations: list[dict[str, Any]]
    updates: list[dict[str, Any]]
    """What the trainer's loss was given, by micro-batch, and its optimizer steps."""


@pytest.fixture(scope="module", params=RUNS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    strategy, estimator = RUNS[request.param]
    home = tmp_path_factory.mktemp(request.param.replace(" ", "_"))
    environment = CONVERSED | {"strategy": strategy}
    overrides = prepare_training(home, environment, CONVERSATION, samples=LEAVES)
    overrides |= {
        "actor_rollout_ref.rollout.engine_kwargs.transformers_cpu.engine_log": home / "engine.jsonl",
        "actor_rollout_ref.actor.policy_loss.loss_mode": "seen_vanilla",
        "data.max_response_length": 640,
        "actor_rollout_ref.rollout.custom.mcp.record_trained": True,
        "algorithm.adv_estimator": estimator,
        "trainer.total_training_steps": STEPS,
    }
    seeing = {"VERL_USE_EXTERNAL_MODULES": "seen_updates", "SEEN_UPDATES": str(home / "updates.jsonl")}
    done = train(home, overrides, timeout_s=1600, PYTHONPATH=str(Path(__file__).parent), **seeing)
    assert done.returncode == 0, done.stdout[-8000:]
    updates = list(map(json.loads, (home / "updates.jsonl").read_text().splitlines()))
    records, generations = read_records(home / "traces"), read_generations(home / "engine.jsonl")
    return Run(home, strategy["use"], estimator, logged(home), records, generations, updates)


def test_each_step_trained_on_whole_groups(run: Run) -> None:
    assert len(run.records) == STEPS * ROWS * LEAVES
    assert {record["strategy"]["use"] for record in run.records} == {run.strategy}
    for step, metrics in run.metrics.items():
        own = [record for record in run.records if record["origin"]["step"] == step]
        assert metrics["mcp/failed_share"] == 0
        assert (metrics["actor/grad_norm"] > 0) == rewards_differ(own)
        assert metrics["mcp/group_size/min"] == LEAVES
        assert metrics[f"mcp/strategy/{run.strategy}"] == 1


def test_a_step_is_one_optimizer_step_whatever_the_number_of_samples(run: Run) -> None:
    assert sum("optimizer_step" in update for update in run.updates) == STEPS
    if run.strategy == "single_turn":
        counts = Counter(len(samples_of(record)) for record in run.records)
        assert max(counts) > 1, counts
        assert all(len(samples_of(record)) == len(record["turns"]) for record in run.records)


def test_the_engines_log_gives_the_same_ids_masks_and_logprobs(run: Run) -> None:
    """And nothing that was sampled is left over, so no beginning was sampled twice."""
    assert compare(run.generations, recorded(run.records)).differences == {}


def test_what_was_trained_on_is_the_record(run: Run) -> None:
    assert_trained_on(run.home, run.records)


def test_the_trainer_finds_the_engines_probabilities(run: Run) -> None:
    for metrics in run.metrics.values():
        assert metrics["training/rollout_probs_diff_valid"] == 1
        assert metrics["training/rollout_probs_diff_max"] < 1e-3


def test_leaves_of_a_tree_share_their_beginnings(run: Run) -> None:
    branched = [record for record in run.records if record["origin"]["parent"] is not None]
    if run.strategy != "tree":
        assert branched == []
        return
    assert branched and not any(record["strategy"]["diverged"] for record in run.records)
    records = {record["id"]: record for record in run.records}
    for record in branched:
        parent, shared = records[record["origin"]["parent"]], record["origin"]["branched_at"]
        assert (record["origin"]["uid"], parent["strategy"]["shared_turns"]) == (parent["origin"]["uid"], 0)
        ids, of_parent = (each["prompt_ids"] + each["response_ids"] for each in (record, parent))
        assert ids[:shared] == of_parent[:shared]
        place = shared - len(record["prompt_ids"])
        assert record["loss_mask"][:place] == parent["loss_mask"][:place] and 1 in record["loss_mask"][:place]
        assert record["logprobs"][:place] == parent["logprobs"][:place]
    for step, metrics in run.metrics.items():
        own = [record["strategy"] for record in run.records if record["origin"]["step"] == step]
        assert metrics["mcp/tree/shared_tokens"] == sum(each["shared_tokens"] for each in own)
        assert metrics["mcp/tree/replayed_calls"] == sum(each["replayed_calls"] for each in own)
        assert metrics["mcp/tree/diverged"] == 0 and metrics["mcp/critical_path_s"] > 0


def test_advantages_are_those_of_turns(run: Run) -> None:
    """GRPO gives a trajectory one advantage; the others give each turn its own, before a branch that of GRPO."""
    records = {record["id"]: record for record in run.records}
    scores: dict[str, list[float]] = {}
    for record in run.records:
        scores.setdefault(record["origin"]["uid"], []).append(record["reward"]["score"])
    differ = 0
    for each in read_trained(run.home / "traces"):
        record = records[each.trace]
        segment = [*record["earlier"], record][each.segment]
        by_turn: dict[int, set[float]] = {}
        for span in segment["spans"]:
            if span["kind"] == "completion":
                by_turn.setdefault(span["turn"], set()).update(each.advantages[span["start"] : span["end"]])
        assert all(len(values) == 1 for values in by_turn.values())
        row = scores[record["origin"]["uid"]]
        of_row = (record["reward"]["score"] - fmean(row)) / (stdev(row) + 1e-6)
        found = [by_turn[turn].pop() for turn in sorted(by_turn)]
        differ += len(set(found)) > 1
        if run.estimator == "grpo":
            assert found == pytest.approx([of_row] * len(found), abs=1e-3)
        elif run.estimator == "tree_grpo":
            assert found[0] == pytest.approx(of_row, abs=1e-3)  # no leaf branches at its first turn
    assert (differ > 0) == (run.estimator == "tree_grpo")  # a sample of a single turn has one turn
