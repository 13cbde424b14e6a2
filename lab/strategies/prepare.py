"""The warmed-up model, the rows and the lock that all runs begin with; made once."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from lab.demo.display import bar
from lab.demo.processes import command
from lab.demo.warm_up import WarmUp, read_rows, rendered, train_rounds
from lab.strategies.conversations import Days
from lab.strategies.long_days import LongDays
from lab.strategies.words import CONDITIONS, TREATMENTS, Words
from lab.worlds import WORLDS
from lab.worlds.depot.parcels import KEYS
from mcp_rollout.rollout.verl_cpu.tiny_model import make_tiny_model

ALL_DAYS = 600
"""Days for training."""
HELD_OUT = 60
"""Held-out tasks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """A part of the warm-up."""

    name: str
    parcels: int | None
    """Of a day; None: all of them. Copying is learned sooner in short texts."""
    words: Words
    batch_size: int
    steps: int
    """Of a round."""
    learning_rate: float = 5e-3
    """Of embeddings and norms. At 5e-3 a seed could not copy words after three rounds, at 2e-2 after two it could."""
    rounds: int = 3
    """At most."""
    good_loss: float
    """The loss per token of the assistant at which there is no further round."""


# A choice among 13 in 42 tokens allows 0.061, four in 182 tokens 0.056, and on average two by habit in 182 0.0103.
STAGES = (
    Stage(
        name="one parcel",
        parcels=1,
        words="random",
        batch_size=32,
        steps=400,
        learning_rate=2e-2,
        good_loss=0.072,
    ),
    Stage(name="whole days", parcels=None, words="random", batch_size=12, steps=200, good_loss=0.068),
    Stage(name="known treatments", parcels=None, words="known", batch_size=12, steps=250, good_loss=0.014),
)
# What comes next in a part of a day is less certain, so the number of rounds is fixed there.
LONG_STAGES = (
    replace(STAGES[0], name="practice", batch_size=12, good_loss=0.08),
    replace(STAGES[1], name="parts of days", rounds=1),
    replace(STAGES[2], rounds=1),
)
SKILLED_STAGES = (*STAGES[:2], replace(STAGES[2], rounds=2, good_loss=0.0))
_MARKER = re.compile(r"<\|\w+\|>|</?(?:tool_call|tool_response|think)>")
_DONE = "prepared.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What a warm-up begins with."""

    experts: Mapping[str, int] = field(default_factory=lambda: {"depot:slice=any": ALL_DAYS})
    """The environments whose experts are imitated, and how many days of each."""
    tasks: str = "depot"
    """The environment that is trained in."""
    days: Callable[..., Days] = Days
    stages: tuple[Stage, ...] = STAGES
    tokens: tuple[str, ...] = ()
    """Words that are a token each, wherever they stand."""


PLANS: Mapping[str, Plan] = {
    "long": Plan(experts={"depot_long": ALL_DAYS}, tasks="depot_long", days=LongDays, stages=LONG_STAGES, tokens=KEYS),
    # One day in eleven by habit: a policy that is wrong at times.
    "skilled": Plan(experts={"depot": ALL_DAYS, "depot:slice=any": ALL_DAYS // 10}, stages=SKILLED_STAGES),
}
"""Of the runs that do not begin with `Plan()`, by their days."""


def prepare(home: Path, *, seed: int = 0, plan: Plan = Plan(), scale: float = 1.0) -> None:
    """Write everything to `home`, unless an earlier call has completed it.

    Args:
        scale: of the warm-up's steps; below 1 the model is good for nothing but a try.

    Raises:
        SystemExit: the call that completed it had another `scale`.
    """
    if (home / _DONE).is_file():
        if (kept := json.loads((home / _DONE).read_text()).get("scale", 1.0)) != scale:
            raise SystemExit(f"error: --warm-up: {home} was warmed up with {kept:g}; name another --out, or remove it")
        return
    home.mkdir(parents=True, exist_ok=True)
    there, exports = ("--environments-dir", WORLDS), list[str]()
    for expert, days in plan.experts.items():
        name = expert.replace(":slice=", "_")
        played, rows = home / f"expert-{name}", home / f"{name}.jsonl"
        days_of_it = (*there, "--engine", "expert", "--split", "train", "-n", str(days))
        command("run", expert, *days_of_it, "--out", played, "--resume")
        command("trace", "export", played, "--sft", "-o", rows)
        exports.append(rows.read_text(encoding="utf-8"))
    (home / "sft.jsonl").write_text("".join(exports), encoding="utf-8")
    prepare_rows(home, plan.tasks)
    loss = _warm_up(home, seed, plan, scale)
    (home / _DONE).write_text(json.dumps({"seed": seed, "scale": scale, "loss": loss}))


def prepare_rows(directory: Path, tasks: str) -> None:
    """Write rows and lock of an environment to the directory, unless they are there."""
    if (directory / "tool_config.yaml").is_file():
        return
    directory.mkdir(exist_ok=True)
    there = ("--environments-dir", WORLDS)
    command("data", tasks, *there, "--split", "train", "-o", directory / "train.parquet")
    command("data", tasks, *there, "--split", "test", "-n", str(HELD_OUT), "-o", directory / "test.parquet")
    command("tool-config", tasks, *there, "-o", directory / "tool_config.yaml")


def _warm_up(home: Path, seed: int, plan: Plan, scale: float) -> float:
    rows = read_rows(home / "sft.jsonl")
    # A first tokenizer, of any vocabulary, has the chat template that renders what the second one's is learnt from.
    template = AutoTokenizer.from_pretrained(make_tiny_model(home / "model", hidden=64, layers=1))
    texts = ["".join(piece.text for piece in rendered(template, row)) for row in rows[:200]]
    # Without digits, so that each stays a token of its own.
    corpus = [part for text in texts for part in _MARKER.split(re.sub(r"\b[A-Z]\d\d\b|\d", "", text))]
    corpus += [f"It is {condition}, " for condition in CONDITIONS] * 100
    corpus += [f'{treatment} it. {{"name": "{treatment}", "arguments": {{"' for treatment in TREATMENTS] * 100
    corpus += [*plan.tokens] * 100
    shape = {"hidden": 64, "heads": 4, "layers": 2}
    make_tiny_model(home / "model", corpus=corpus, vocab_size=4096, min_frequency=20, **shape, seed=seed)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", min(2, os.cpu_count() or 1))))
    tokenizer = AutoTokenizer.from_pretrained(home / "model")
    model = AutoModelForCausalLM.from_pretrained(home / "model", dtype=torch.float32).train()
    loss = float("nan")
    for stage in plan.stages:
        options = WarmUp(
            steps=max(1, int(stage.steps * scale)),
            rounds=stage.rounds if scale == 1 else 1,
            batch_size=stage.batch_size,
            learning_rate=stage.learning_rate,
            good_loss=stage.good_loss,
            seed=seed,
        )
        days = partial(plan.days, tokenizer, rows, parcels=stage.parcels, words=stage.words)
        with bar(f"warm-up, {stage.name}", stage.steps) as (progress, task):

            def show(step: int, loss: float, name: str = stage.name) -> None:
                progress.update(task, completed=step, description=f"warm-up, {name}, loss {loss:.3f}")

            loss = train_rounds(model, days, options, show)
    model.save_pretrained(home / "model")
    return loss
