"""Three GRPO steps with compacted contexts, with summaries trained, masked and not asked for: one advantage each."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from agent_training import assert_trained_on
from echo_training import CONVERSED, prepare_training
from engine_log import (
    compare,
    read_generations,
    read_records,
    recorded,
    rewards_differ,
    samples_of,
    summaries_of,
)
from verl_run import logged, train

from mcp_rollout.rollout.trace.trained import read_trained

pytestmark = [pytest.mark.verl, pytest.mark.full, pytest.mark.timeout(1800)]

SAMPLES, STEPS = 4, 3
ASK = "Sum up."
COMPACT = {"at_tokens": 440, "keep_turns": 1, "summary_tokens": 40, "instruction": ASK}
ENVIRONMENT: dict[str, Any] = {**CONVERSED, "limits": {"assistant_turns": 5}}
_SHOUTS: list[dict[str, Any]] = [
    {"role": "assistant", "tool_calls": [{"function": {"name": "shout", "arguments": {"text": "plum", "times": 150}}}]},
    {"role": "tool", "content": " ".join(["PLUM"] * 150)},
]
CONVERSATION: list[dict[str, Any]] = [
    {"role": "user", "content": "Shout plum."},
    *_SHOUTS,
    *_SHOUTS,
    {"role": "user", "content": ASK},
    {"role": "assistant", "content": "There was a plum, and then there was another one."},
]


@dataclass(frozen=True)
class Run:
    home: Path
    kind: str
    metrics: dict[int, dict[str, Any]]
    records: list[dict[str, Any]]
    generations: list[dict[str, Any]]


@pytest.fixture(scope="module", params=["train", "mask", "cut"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    home = tmp_path_factory.mktemp(f"compact_{request.param}")
    changes = {"summary_tokens": 0} if request.param == "cut" else {"summary_loss": request.param}
    strategy = {"use": "compact", "compact": COMPACT | changes}
    overrides = prepare_training(home, ENVIRONMENT | {"strategy": strategy}, CONVERSATION, samples=SAMPLES)
    overrides |= {
        "data.max_response_length": 768,
        "actor_rollout_ref.rollout.engine_kwargs.transformers_cpu.engine_log": home / "engine.jsonl",
        "actor_rollout_ref.rollout.custom.mcp.record_trained": True,
        "actor_rollout_ref.actor.optim.lr": 1e-4,
        "trainer.total_training_steps": STEPS,
    }
    done = train(home, overrides, timeout_s=1600)
    assert done.returncode == 0, done.stdout[-8000:]
    records, generations = read_records(home / "traces"), read_generations(home / "engine.jsonl")
    return Run(home, request.param, logged(home), records, generations)


def marked(record: dict[str, Any], kind: str) -> set[int]:
    marks = ((number, mark["kind"]) for number, turn in enumerate(record["turns"]) for mark in turn["marks"])
    return {number for number, found in marks if found == kind}


def test_trajectories_of_several_contexts_were_trained(run: Run) -> None:
    assert len(run.records) == STEPS * 2 * SAMPLES
    counts = Counter(len(samples_of(record)) for record in run.records)
    assert max(counts) > 1, counts
    for step, metrics in run.metrics.items():
        own = [record for record in run.records if record["origin"]["step"] == step]
        assert metrics["mcp/failed_share"] == 0
        assert (metrics["actor/grad_norm"] > 0) == rewards_differ(own)
        for kind, is_ours in (("compacted", run.kind != "cut"), ("oldest_cut", run.kind == "cut")):
            counted = sum(len(marked(record, kind)) for record in own)
            assert metrics[f"mcp/marks/{kind}"] == counted / len(own) and (counted > 0) == is_ours
        assert metrics["mcp/strategy/compact"] == 1


def test_every_segment_is_the_engines_log_and_nothing_is_left_over(run: Run) -> None:
    summaries = summaries_of(run.records) if run.kind == "mask" else set[tuple[int, ...]]()

    def in_loss(generation: dict[str, Any]) -> list[bool]:
        return [tuple(generation["token_ids"]) not in summaries] * len(generation["token_ids"])

    assert compare(run.generations, recorded(run.records), in_loss=in_loss).differences == {}


def test_what_was_trained_on_is_the_record(run: Run) -> None:
    assert_trained_on(run.home, run.records)


def test_a_score_counts_once_and_all_segments_have_one_advantage(run: Run) -> None:
    for step, metrics in run.metrics.items():
        scores = [record["reward"]["score"] for record in run.records if record["origin"]["step"] == step]
        assert metrics["critic/score/mean"] == pytest.approx(sum(scores) / len(scores), abs=1e-6)
    pushed: dict[str, set[float]] = {}
    ratios: list[float] = []
    for each in read_trained(run.home / "traces"):
        own = [value for value, mask in zip(each.advantages, each.mask, strict=True) if mask]
        pushed.setdefault(each.trace, set()).update(own)
        ratios += [ratio for ratio, mask in zip(each.ratios or (), each.mask, strict=True) if mask]
    assert all(len(values) == 1 for values in pushed.values()) and len({*map(max, pushed.values())}) > 2
    assert ratios == pytest.approx([1.0] * len(ratios), abs=1e-3)
