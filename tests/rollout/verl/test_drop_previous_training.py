"""One GRPO step through verl's v1 trainer with thinking that leaves the context: several samples of a trajectory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from echo_training import prepare_training
from engine_log import derive, read_generations, read_records, samples_of
from transformers import AutoTokenizer
from verl_run import logged, train

pytestmark = [pytest.mark.verl, pytest.mark.full, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[3]
SAMPLES = 4
ENVIRONMENT = {
    "servers": {
        "echo": {
            "command": "${python}",
            "args": [str(ROOT / "tests" / "support" / "echo_server.py")],
            "roles": {"start": "say_hello", "reply": "answer", "score": "judge"},
        }
    },
    "user": {"server": "echo"},
    "reward": {"server": "echo", "parts": ["letters"]},
    "thinking": {"context": "drop_previous", "tokens_per_turn": 12},
}
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


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    home = tmp_path_factory.mktemp("drop")
    overrides = prepare_training(home, ENVIRONMENT, CONVERSATION, samples=SAMPLES)
    overrides["actor_rollout_ref.rollout.engine_kwargs.transformers_cpu.engine_log"] = home / "engine.jsonl"
    # As the preflight says: 2 rows, and a trajectory has 15 turns and therefore 15 samples at most.
    overrides["actor_rollout_ref.actor.ppo_mini_batch_size"] = 30
    overrides["actor_rollout_ref.actor.use_dynamic_bsz"] = True
    overrides["actor_rollout_ref.actor.ppo_max_token_len_per_gpu"] = 4096
    counting = {"VERL_USE_EXTERNAL_MODULES": "counted_steps", "OPTIMIZER_STEPS": str(home / "steps.txt")}
    done = train(home, overrides, PYTHONPATH=str(Path(__file__).parent), **counting)
    assert done.returncode == 0, done.stdout[-8000:]
    yield Run(home, logged(home), read_records(home / "traces"), read_generations(home / "engine.jsonl"))


def test_trajectories_of_several_samples_were_trained(run: Run) -> None:
    assert len(run.records) == 2 * SAMPLES
    counts = Counter(len(samples_of(record)) for record in run.records)
    assert max(counts) > 1, counts
    assert run.metrics[1]["mcp/failed_share"] == 0
    assert run.metrics[1]["actor/grad_norm"] > 0


def test_all_samples_of_all_trajectories_are_one_optimizer_step(run: Run) -> None:
    """With a mini-batch of `train_batch_size` rows, verl takes a step for each slice of that many trajectories."""
    assert sum(len(samples_of(record)) for record in run.records) > 2 * SAMPLES
    assert (run.home / "steps.txt").read_text().splitlines() == ["step"]
    mean = sum(record["reward"]["score"] for record in run.records) / len(run.records)
    assert run.metrics[1]["mcp/score/mean"] == pytest.approx(mean)


def test_every_sample_holds_what_the_engine_saw_and_sampled_and_nothing_is_left_over(run: Run) -> None:
    left = list(run.generations)
    for record in run.records:
        for sample in samples_of(record):
            ids, mask, logprobs = derive(sample, left)
            assert sample["response_ids"][: len(ids)] == ids
            assert sample["loss_mask"] == mask + [0] * (len(sample["response_ids"]) - len(ids))
            assert sample["logprobs"][: len(ids)] == logprobs
    assert left == []


def test_the_trainer_finds_the_engines_probabilities_in_every_sample(run: Run) -> None:
    """It computes them from the samples' own prompts: another context would give others."""
    assert run.metrics[1]["training/rollout_probs_diff_valid"] == 1
    assert run.metrics[1]["training/rollout_probs_diff_max"] < 1e-3
    assert run.metrics[1]["training/rollout_probs_diff_mean"] < 1e-4


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
    turns = [turn for record in run.records for turn in record["turns"]]
    closed = sum(any(mark["kind"] == "thinking_closed" for mark in turn["marks"]) for turn in turns)
    assert run.metrics[1]["mcp/marks/thinking_closed"] == closed / len(run.records)
