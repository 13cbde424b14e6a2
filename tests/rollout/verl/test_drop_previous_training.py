"""Three GRPO steps with thinking that leaves the context: several samples of a trajectory, one update a step."""

from __future__ import annotations

import json
from array import array
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from agent_training import assert_every_token_is_the_engines_or_rendered
from echo_training import CONVERSED, prepare_training
from engine_log import read_generations, read_records, rewards_differ, samples_of
from trace_samples import read_file
from transformers import AutoTokenizer
from verl_run import logged, train

from mcp_rollout.rollout.trace.archive import archive
from mcp_rollout.rollout.trace.files import ARCHIVE_SUFFIX
from mcp_rollout.rollout.trace.trained import read_trained
from mcp_rollout.rollout.trace.trained_segment import digest

pytestmark = [pytest.mark.verl, pytest.mark.full, pytest.mark.timeout(1800)]

SAMPLES, STEPS = 4, 3
ENVIRONMENT: dict[str, Any] = {**CONVERSED, "thinking": {"context": "drop_previous", "tokens_per_turn": 12}}
CONVERSATION: list[dict[str, Any]] = [
    {"role": "user", "content": "Shout plum."},
    {
        "role": "assistant",
        "reasoning_content": "plum",
        "tool_calls": [{"function": {"name": "shout", "arguments": {"text": "plum"}}}],
    },
    {"role": "tool", "content": "PLUM"},
    {"role": "assistant", "content": "PLUM", "reasoning_content": "It was loud enough, and so I can say what it was."},
    {"role": "user", "content": "Shout pear 1."},
    {"role": "assistant", "content": "PEAR", "reasoning_content": "pear"},
]


@dataclass(frozen=True)
class Run:
    home: Path
    metrics: dict[int, dict[str, Any]]
    records: list[dict[str, Any]]
    generations: list[dict[str, Any]]
    updates: list[dict[str, Any]]
    """What the trainer's loss was given, by micro-batch, and its optimizer steps."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    home = tmp_path_factory.mktemp("drop")
    overrides = prepare_training(home, ENVIRONMENT, CONVERSATION, samples=SAMPLES)
    overrides |= {
        "actor_rollout_ref.rollout.engine_kwargs.transformers_cpu.engine_log": home / "engine.jsonl",
        "actor_rollout_ref.rollout.custom.mcp.record_trained": True,
        "actor_rollout_ref.actor.policy_loss.loss_mode": "seen_vanilla",
        # A second update in a step would show clearly in its probabilities.
        "actor_rollout_ref.actor.optim.lr": 1e-3,
        "trainer.total_training_steps": STEPS,
    }
    seeing = {"VERL_USE_EXTERNAL_MODULES": "seen_updates", "SEEN_UPDATES": str(home / "updates.jsonl")}
    done = train(home, overrides, timeout_s=1600, PYTHONPATH=str(Path(__file__).parent), **seeing)
    assert done.returncode == 0, done.stdout[-8000:]
    updates = list(map(json.loads, (home / "updates.jsonl").read_text().splitlines()))
    records = read_records(home / "traces")
    # From here on the traces are those of the archives: what is compared with the trainer's numbers is what stays.
    for journal in (home / "traces").glob("*.jsonl"):
        archive(journal)
    return Run(home, logged(home), records, read_generations(home / "engine.jsonl"), updates)


def test_trajectories_of_several_samples_were_trained(run: Run) -> None:
    assert len(run.records) == STEPS * 2 * SAMPLES
    counts = Counter(len(samples_of(record)) for record in run.records)
    assert max(counts) > 1, counts
    for step, metrics in run.metrics.items():
        own = [record for record in run.records if record["origin"]["step"] == step]
        assert metrics["mcp/failed_share"] == 0
        assert (metrics["actor/grad_norm"] > 0) == rewards_differ(own)
        samples = [len(samples_of(record)) for record in own]
        assert metrics["mcp/samples_per_trajectory"] == pytest.approx(sum(samples) / len(samples))


def test_all_samples_of_a_step_are_one_update_on_the_policy_that_sampled_them(run: Run) -> None:
    assert sum("optimizer_step" in update for update in run.updates) == STEPS
    batches = [update for update in run.updates if "optimizer_step" not in update]
    assert max(moved for batch in batches for moved in batch["moved"]) < 1e-5
    # The samples that fill a batch up to whole micro-batches are there, and no average counts them.
    assert any(0 in batch["trained"] for batch in batches)
    real = [sum(len(samples_of(each)) for each in run.records if each["origin"]["step"] == step) for step in (1, 2, 3)]
    assert list(dict.fromkeys(batch["global_batch_size"] for batch in batches)) == list(dict.fromkeys(real))


def test_scores_count_a_trajectory_once(run: Run) -> None:
    for step, metrics in run.metrics.items():
        scores = [record["reward"]["score"] for record in run.records if record["origin"]["step"] == step]
        assert metrics["critic/score/mean"] == pytest.approx(sum(scores) / len(scores), abs=1e-6)
        assert metrics["critic/rewards/mean"] == metrics["critic/score/mean"]


def test_what_was_trained_on_is_the_archive_position_by_position(run: Run) -> None:
    archives = sorted((run.home / "traces").glob(f"*{ARCHIVE_SUFFIX}"))
    assert archives and not list((run.home / "traces").glob("*.jsonl"))
    traces = {trace.id: trace for path in archives for trace in read_file(path)}
    trained = list(read_trained(run.home / "traces"))
    assert {each.step for each in trained} == {1, 2, 3} and not any(each.dropped for each in trained)
    found = {(each.trace, each.segment) for each in trained}
    assert len(found) == len(trained) == sum(len(trace.segments) for trace in traces.values())
    assert any(logprob for trace in traces.values() for logprob in trace.logprobs)
    for each in trained:
        trace = traces[each.trace]
        segment = [*trace.earlier, trace][each.segment]
        assert (each.uid, each.sample, each.step) == (trace.origin.uid, trace.origin.sample, trace.origin.step)
        assert each.ids_digest == digest(segment.prompt_ids, segment.response_ids)
        assert each.mask == [mask == 1 for mask in segment.loss_mask]
        sampled = array("f", segment.logprobs)
        assert each.sampled_logprobs == [value if mask else 0.0 for value, mask in zip(sampled, each.mask, strict=True)]


def test_what_the_trainer_computed_is_beside_it(run: Run) -> None:
    for each in read_trained(run.home / "traces"):
        assert each.ratios is not None and each.entropy is not None
        ratios = [ratio for ratio, mask in zip(each.ratios, each.mask, strict=True) if mask]
        assert ratios == pytest.approx([1.0] * len(ratios), abs=1e-3)
        pushed = [value for value, mask in zip(each.advantages, each.mask, strict=True) if mask]
        assert len(set(pushed)) == 1  # GRPO gives all tokens of a trajectory one advantage
        entropies = [value for value, mask in zip(each.entropy, each.mask, strict=True) if mask]
        assert max(entropies) > 0


def test_every_sample_holds_what_the_engine_saw_and_sampled_and_nothing_is_left_over(run: Run) -> None:
    assert_every_token_is_the_engines_or_rendered(run.records, run.generations)


def test_the_trainer_finds_the_engines_probabilities_in_every_sample(run: Run) -> None:
    """It computes them from the samples' own prompts: another context would give others."""
    for metrics in run.metrics.values():
        assert metrics["training/rollout_probs_diff_valid"] == 1
        assert metrics["training/rollout_probs_diff_max"] < 1e-3
        assert metrics["training/rollout_probs_diff_mean"] < 1e-4


def test_a_sample_begins_with_what_the_one_before_it_said_less_its_leading_thoughts(run: Run) -> None:
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


def test_closed_thoughts_are_counted(run: Run) -> None:
    records = [record for record in run.records if record["origin"]["step"] == 1]
    turns = [turn for record in records for turn in record["turns"]]
    closed = sum(any(mark["kind"] == "thinking_closed" for mark in turn["marks"]) for turn in turns)
    assert run.metrics[1]["mcp/marks/thinking_closed"] == closed / len(records)
