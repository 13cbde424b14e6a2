"""Three GRPO steps of each way to make samples of a trajectory, through verl's own trainer loop.

Every run is held against the engine's log, and against what the trainer recorded of its batches and its updates.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
from agent_training import assert_trained_on
from echo_training import CONVERSED, SHOUT_PLUM, prepare_training
from engine_log import compare, read_generations, read_records, recorded, rewards_differ, samples_of, summaries_of
from transformers import AutoTokenizer
from verl_run import logged, train

from mcp_rollout.rollout.trace.trained import read_trained

pytestmark = [pytest.mark.verl, pytest.mark.full, pytest.mark.timeout(3600)]

LEAVES, STEPS, ROWS = 4, 3, 2
PEAR: list[dict[str, Any]] = [{"role": "user", "content": "Shout pear 1."}, {"role": "assistant", "content": "PEAR"}]
_SHOUTS: list[dict[str, Any]] = [
    {"role": "assistant", "tool_calls": [{"function": {"name": "shout", "arguments": {"text": "plum", "times": 150}}}]},
    {"role": "tool", "content": " ".join(["PLUM"] * 150)},
]
ASK = "Sum up."
SUMMED: list[dict[str, Any]] = [
    *SHOUT_PLUM[:1],
    *_SHOUTS,
    *_SHOUTS,
    {"role": "user", "content": ASK},
    {"role": "assistant", "content": "There was a plum, and then there was another one."},
]
THOUGHT: list[dict[str, Any]] = [
    *SHOUT_PLUM[:1],
    {"reasoning_content": "plum", **SHOUT_PLUM[1]},
    SHOUT_PLUM[2],
    {"role": "assistant", "content": "PLUM", "reasoning_content": "It was loud enough, and so I can say what it was."},
    PEAR[0],
    {"reasoning_content": "pear", **PEAR[1]},
]


@dataclass(frozen=True)
class Case:
    """What differs from three steps of GRPO on chains."""

    strategy: str = "chain"
    options: dict[str, Any] | None = None
    """Of the strategy."""
    estimator: str = "grpo"
    thinking: dict[str, Any] | None = None
    conversation: list[dict[str, Any]] | None = None
    """What the model has learnt by heart."""
    rate: float = 1e-6
    response_tokens: int = 640

    @property
    def environment(self) -> dict[str, Any]:
        strategy = {"use": self.strategy} | ({self.strategy: self.options} if self.options else {})
        limits = {"limits": {"assistant_turns": 5}} if self.strategy == "compact" else {}
        return CONVERSED | {"strategy": strategy} | limits | ({"thinking": self.thinking} if self.thinking else {})


def compact(**changes: object) -> Case:
    options = {"at_tokens": 440, "keep_turns": 1, "summary_tokens": 40, "instruction": ASK, **changes}
    return Case("compact", options, conversation=SUMMED, rate=1e-4, response_tokens=768)


CASES = {
    "chain": Case(),
    "tree with tree_grpo": Case("tree", {"roots": 2}, estimator="tree_grpo"),
    "single_turn with step_grpo": Case("single_turn", estimator="step_grpo"),
    "compact": compact(summary_loss="train"),
    "compact, summaries masked": compact(summary_loss="mask"),
    "compact, oldest cut": compact(summary_tokens=0),
    # A second update in a step would show clearly in its probabilities.
    "drop_previous": Case(
        thinking={"context": "drop_previous", "tokens_per_turn": 12}, conversation=THOUGHT, rate=1e-3
    ),
}
SEVERAL = [name for name in CASES if name.startswith(("single_turn", "compact", "drop"))]
"""Runs of which trajectories are several samples."""


@dataclass(frozen=True)
class Run:
    name: str
    case: Case
    home: Path
    metrics: dict[int, dict[str, Any]]
    records: list[dict[str, Any]]
    generations: list[dict[str, Any]]
    updates: list[dict[str, Any]]
    """What the trainer's loss was given, by micro-batch, and its optimizer steps."""

    def steps(self) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
        """The metrics of each step, and its records."""
        for step, metrics in self.metrics.items():
            yield metrics, [record for record in self.records if record["origin"]["step"] == step]


@pytest.fixture(scope="module", params=CASES)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    name, case = request.param, CASES[request.param]
    home = tmp_path_factory.mktemp(name.replace(" ", "_").replace(",", ""))
    overrides = prepare_training(home, case.environment, case.conversation or [*SHOUT_PLUM, *PEAR], samples=LEAVES)
    overrides |= {
        "actor_rollout_ref.rollout.engine_kwargs.transformers_cpu.engine_log": home / "engine.jsonl",
        "actor_rollout_ref.actor.policy_loss.loss_mode": "seen_vanilla",
        "actor_rollout_ref.actor.optim.lr": case.rate,
        "data.max_response_length": case.response_tokens,
        "actor_rollout_ref.rollout.custom.mcp.record_trained": True,
        "algorithm.adv_estimator": case.estimator,
        "trainer.total_training_steps": STEPS,
    }
    seeing = {"VERL_USE_EXTERNAL_MODULES": "seen_updates", "SEEN_UPDATES": str(home / "updates.jsonl")}
    done = train(home, overrides, timeout_s=1600, PYTHONPATH=str(Path(__file__).parent), **seeing)
    assert done.returncode == 0, done.stdout[-8000:]
    updates = list(map(json.loads, (home / "updates.jsonl").read_text().splitlines()))
    records, generations = read_records(home / "traces"), read_generations(home / "engine.jsonl")
    return Run(name, case, home, logged(home), records, generations, updates)


def marked(records: list[dict[str, Any]], kind: str) -> int:
    """How many turns have this mark."""
    return sum(any(mark["kind"] == kind for mark in turn["marks"]) for record in records for turn in record["turns"])


def test_each_step_trained_on_whole_groups(run: Run) -> None:
    assert len(run.records) == STEPS * ROWS * LEAVES
    assert {record["strategy"]["use"] for record in run.records} == {run.case.strategy}
    for metrics, own in run.steps():
        assert metrics["mcp/failed_share"] == 0
        assert (metrics["actor/grad_norm"] > 0) == rewards_differ(own)
        assert metrics["mcp/group_size/min"] == LEAVES
        assert metrics[f"mcp/strategy/{run.case.strategy}"] == 1


def test_trajectories_have_the_samples_of_their_strategy(run: Run) -> None:
    counts = Counter(len(samples_of(record)) for record in run.records)
    assert (max(counts) > 1) == (run.name in SEVERAL), counts
    if run.case.strategy == "single_turn":
        assert all(len(samples_of(record)) == len(record["turns"]) for record in run.records)
    for metrics, own in run.steps():
        assert metrics["mcp/samples_per_trajectory"] == pytest.approx(fmean(len(samples_of(each)) for each in own))


def test_what_left_the_context_is_counted(run: Run) -> None:
    ours = {"compacted": run.name.startswith("compact") and run.case.options != CASES["compact, oldest cut"].options}
    ours |= {"oldest_cut": run.name == "compact, oldest cut", "thinking_closed": run.name == "drop_previous"}
    for kind, is_ours in ours.items():
        assert (marked(run.records, kind) > 0) == is_ours
        for metrics, own in run.steps():
            assert metrics[f"mcp/marks/{kind}"] == marked(own, kind) / len(own)


def test_all_samples_of_a_step_are_one_update_on_the_policy_that_sampled_them(run: Run) -> None:
    assert sum("optimizer_step" in update for update in run.updates) == STEPS
    batches = [update for update in run.updates if "optimizer_step" not in update]
    assert max(moved for batch in batches for moved in batch["moved"]) < 1e-5
    # The samples that fill a batch up to whole micro-batches are there, and no average counts them.
    assert run.name != "drop_previous" or any(0 in batch["trained"] for batch in batches)
    real = [sum(len(samples_of(each)) for each in own) for _, own in run.steps()]
    assert list(dict.fromkeys(batch["global_batch_size"] for batch in batches)) == list(dict.fromkeys(real))


def test_the_engines_log_gives_the_same_ids_masks_and_logprobs(run: Run) -> None:
    """And nothing that was sampled is left over, so no beginning was sampled twice."""
    summaries = summaries_of(run.records) if run.name == "compact, summaries masked" else set[tuple[int, ...]]()

    def in_loss(generation: dict[str, Any]) -> list[bool]:
        return [tuple(generation["token_ids"]) not in summaries] * len(generation["token_ids"])

    assert compare(run.generations, recorded(run.records), in_loss=in_loss).differences == {}


def test_what_was_trained_on_is_the_record(run: Run) -> None:
    assert_trained_on(run.home, run.records)


def test_the_trainer_finds_the_engines_probabilities_in_every_sample(run: Run) -> None:
    """It computes them from the samples' own prompts: another context would give others."""
    for metrics in run.metrics.values():
        assert metrics["training/rollout_probs_diff_valid"] == 1
        assert metrics["training/rollout_probs_diff_max"] < 1e-3
        assert metrics["training/rollout_probs_diff_mean"] < 1e-4


def test_scores_count_a_trajectory_once(run: Run) -> None:
    for metrics, own in run.steps():
        assert metrics["critic/score/mean"] == pytest.approx(fmean(each["reward"]["score"] for each in own), abs=1e-6)
        assert metrics["critic/rewards/mean"] == metrics["critic/score/mean"]


def test_leaves_of_a_tree_share_their_beginnings(run: Run) -> None:
    branched = [record for record in run.records if record["origin"]["parent"] is not None]
    if run.case.strategy != "tree":
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
    for metrics, own in run.steps():
        assert metrics["mcp/tree/shared_tokens"] == sum(each["strategy"]["shared_tokens"] for each in own)
        assert metrics["mcp/tree/replayed_calls"] == sum(each["strategy"]["replayed_calls"] for each in own)
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
            if span["kind"] in ("thinking", "completion"):
                trained = range(span["start"], span["end"])
                own = {each.advantages[at] for at in trained if segment["loss_mask"][at]}
                by_turn.setdefault(span["turn"], set()).update(own)
        assert all(len(values) <= 1 for values in by_turn.values())
        row = scores[record["origin"]["uid"]]
        of_row = (record["reward"]["score"] - fmean(row)) / (stdev(row) + 1e-6)
        found = [by_turn[turn].pop() for turn in sorted(by_turn) if by_turn[turn]]
        differ += len(set(found)) > 1
        if run.case.estimator == "grpo":
            assert found == pytest.approx([of_row] * len(found), abs=1e-3)
        elif run.case.estimator == "tree_grpo":
            assert found[0] == pytest.approx(of_row, abs=1e-3)  # no leaf branches at its first turn
    assert (differ > 0) == (run.case.estimator == "tree_grpo")  # a sample of a single turn has one turn


def test_what_the_trainer_computed_is_beside_what_it_trained_on(run: Run) -> None:
    for each in read_trained(run.home / "traces"):
        assert each.ratios is not None and each.entropy is not None
        trained = [at for at, mask in enumerate(each.mask) if mask]
        assert [each.ratios[at] for at in trained] == pytest.approx([1.0] * len(trained), abs=1e-3)
        assert not trained or max(each.entropy[at] for at in trained) > 0


def test_a_sample_begins_with_what_the_one_before_it_said_less_its_leading_thoughts(run: Run) -> None:
    if run.name != "drop_previous":
        return
    tokenizer = AutoTokenizer.from_pretrained(run.home / "model")
    followed = 0
    for record in run.records:
        for earlier, later in pairwise(samples_of(record)):
            said, after_thought = tokenizer.decode(earlier["prompt_ids"]), False
            for span in earlier["spans"]:
                text = tokenizer.decode(earlier["response_ids"][span["start"] : span["end"]])
                if span["kind"] not in ("thinking", "forced"):
                    said += text.lstrip("\n") if after_thought else text
                after_thought = span["kind"] in ("thinking", "forced")
            assert tokenizer.decode(later["prompt_ids"]).startswith(said)
            followed += 1
    assert followed > 0
