"""The demo's experiment: warm up a tiny model on expert traces, then train it with GRPO.

The customer of a retail order wants to be out of it, or to know about it. In the environment `shop:slice=wish_any`
each of four steps is accepted, and the expert chooses one at random: from its traces the model learns to call tools in
the right form and to read the customer's wish and the order's state, but not which step fits. GRPO then trains it in
`shop:slice=wish_fitting`, where wish and state together decide which step is rewarded.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from lab.demo.display import bar
from lab.demo.grpo import logged_steps, train
from lab.demo.outcomes import summarise
from lab.demo.processes import command
from lab.demo.warm_up import WarmUp, read_rows, rendered, warm_up
from lab.worlds import WORLDS
from mcp_rollout.rollout.trace.record import Trace
from mcp_rollout.rollout.trace.store import read_traces
from mcp_rollout.rollout.verl_cpu.tiny_model import make_tiny_model

_MARKER = re.compile(r"<\|\w+\|>|</?(?:tool_call|tool_response|think)>")

COMPARED_STEPS = 5
"""Number of steps at each end of the curve whose mean rewards are compared."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tasks:
    """The environments of an experiment."""

    blind: str
    """The expert chooses at random here, for the warm-up."""
    fitting: str
    validation: str
    """`fitting` with another test split."""
    blind_reward: float
    """Mean reward of choosing a step at random and carrying it out without a mistake."""
    warm_up: WarmUp
    rows: int
    """Of a batch. Kinds of tasks cycle through the rows, so that every batch has each kind as often as any other."""
    samples: int
    """Of a row."""
    steps: int
    """Of GRPO, unless an experiment has a number of its own."""


WISH = Tasks(
    blind="shop:slice=wish_any",
    fitting="shop:slice=wish_fitting",
    validation="shop:slice=wish_validation",
    blind_reward=1 / 4,
    # Four equally likely steps cost 0.027 nats per token. At the rate of `STATE`, two rounds did not teach the wish.
    warm_up=WarmUp(good_loss=0.029, learning_rate=2e-2),
    rows=12,
    samples=6,
    steps=45,
)
"""Wish and state decide."""
STATE = Tasks(
    blind="shop:slice=any",
    fitting="shop:slice=fitting",
    validation="shop:slice=validation",
    blind_reward=1 / 3,
    warm_up=WarmUp(),
    rows=9,
    samples=8,
    steps=30,
)
"""The state alone decides: a customer names all steps. The other examples of the demo's policy train on these."""
TASKS = {"wish": WISH, "state": STATE}


@dataclass(frozen=True, kw_only=True)
class Experiment:
    home: Path
    tasks: Tasks = WISH
    seed: int = 0
    """Seed of the model, the warm-up, the order of the rows and sampling."""
    steps: int | None = None
    """Of GRPO; None for those of the tasks."""
    learning_rate: float = 1.5e-3
    """Of the first step; it falls to 0 along a cosine."""
    is_validated: bool = False
    """Whether validation tasks are served before and after, to choose settings; else the held-out tasks."""


@dataclass(kw_only=True)
class Result:
    """The outcome of an experiment; rewards are between 0 and 1."""

    curve: list[float]
    """Mean training reward of each step."""
    before: list[Trace]
    """Held-out trajectories before the first step, in the order of the rows."""
    after: list[Trace]
    """The same rows after the last step."""
    seconds: dict[str, float] = field(default_factory=dict[str, float])

    @property
    def first(self) -> float:
        return statistics.fmean(self.curve[:COMPARED_STEPS])

    @property
    def last(self) -> float:
        return statistics.fmean(self.curve[-COMPARED_STEPS:])

    @property
    def held_out(self) -> tuple[float, float]:
        return mean_reward(self.before), mean_reward(self.after)


def learn(experiment: Experiment) -> Result:
    """Collect expert traces, warm up, train. Writes everything to the experiment's home, `result.json` included."""
    home, tasks, seconds = experiment.home, experiment.tasks, dict[str, float]()
    with timed(seconds, "expert traces"):
        held_out = collect(home, tasks, is_validated=experiment.is_validated)
    with timed(seconds, "warm-up"):
        prepare_model(home, experiment.seed, tasks.warm_up)
    batch = {"data.train_batch_size": tasks.rows, "actor_rollout_ref.rollout.n": tasks.samples}
    with timed(seconds, "GRPO"):
        steps = tasks.steps if experiment.steps is None else experiment.steps
        train(home, seed=experiment.seed, steps=steps, learning_rate=experiment.learning_rate, more=batch)
    validations = [trace for trace in read_traces(home / "train" / "traces") if trace.origin.validate_]
    steps = sorted({trace.origin.step for trace in validations})
    before, after = (_rows([trace for trace in validations if trace.origin.step == at]) for at in (steps[0], steps[-1]))
    curve = [step["critic/score/mean"] for step in logged_steps(home)]
    result = Result(curve=curve, before=before, after=after, seconds=seconds)
    record: dict[str, Any] = {"held_out_environment": held_out, "seed": experiment.seed}
    record |= {"learning_rate": experiment.learning_rate, "curve": curve, "seconds": seconds}
    record |= {"first": result.first, "last": result.last, "held_out": result.held_out}
    record |= {"before": summarise(before).record(), "after": summarise(after).record()}
    (home / "result.json").write_text(json.dumps(record, indent=2))
    return result


def collect(home: Path, tasks: Tasks, *, is_validated: bool = False, environments: Path = WORLDS) -> str:
    """Write expert traces for the warm-up, rows for GRPO, and the lock of the tools that the model sees.

    Args:
        environments: Directory of the environments.

    Returns:
        The environment of the held-out rows.
    """
    held_out = tasks.validation if is_validated else tasks.fitting
    there = ("--environments-dir", environments)
    command("run", tasks.blind, *there, "--engine", "expert", "--split", "train", "--out", home / "expert")
    command("trace", "export", home / "expert", "--sft", "-o", home / "sft.jsonl")
    command("data", tasks.fitting, *there, "--split", "train", "-o", home / "train.parquet")
    command("data", held_out, *there, "--split", "test", "-o", home / "test.parquet")
    command("tool-config", *sorted({tasks.fitting, held_out}), *there, "-o", home / "tool_config.yaml")
    return held_out


def prepare_model(home: Path, seed: int, options: WarmUp) -> None:
    """Make a tiny model and its tokenizer, and warm it up on the expert's conversations."""
    rows = read_rows(home / "sft.jsonl")
    # A first tokenizer, of any vocabulary, has the chat template that renders what the second one's is learnt from.
    template = AutoTokenizer.from_pretrained(make_tiny_model(home / "model", hidden=64, layers=1))
    corpus = [text for row in rows for text in words(template, row)]
    shape = {"hidden": 64, "heads": 4, "layers": 2}
    make_tiny_model(home / "model", corpus=corpus, vocab_size=4096, min_frequency=20, **shape, seed=seed)
    torch.set_num_threads(min(2, os.cpu_count() or 1))
    options = replace(options, seed=seed)
    with bar("warm-up", options.steps) as (progress, task):
        warm_up(
            home / "model",
            home / "sft.jsonl",
            options,
            progress=lambda step, loss: progress.update(task, completed=step, description=f"warm-up, loss {loss:.3f}"),
        )


def words(tokenizer: PreTrainedTokenizerBase, row: dict[str, Any]) -> list[str]:
    """Return a conversation's text for a tokenizer to learn from, without digits, so that each stays one token."""
    text = "".join(piece.text for piece in rendered(tokenizer, row))
    return _MARKER.split(re.sub(r"\d", "", text))


def mean_reward(traces: Sequence[Trace]) -> float:
    return statistics.fmean(trace.reward.score for trace in traces if trace.reward)


@contextmanager
def timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    seconds[name] = time.monotonic() - began


def _rows(traces: list[Trace]) -> list[Trace]:
    return sorted(traces, key=lambda trace: trace.origin.row)
