"""What runs begin with, each made once: rows, the lock, an expert's conversations, and the warmed-up models."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from demo_experiment.display import bar, console
from demo_experiment.processes import command
from demo_experiment.variation import Piece
from demo_experiment.warm_up import Conversation, WarmUp, read_rows, rendered, tokenize, train_on
from pretrained_experiment.settings import EXPERT_ROWS, HELD_OUT_TEMPERATURE, TURN_TOKENS, Setting
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

DESK = Path(__file__).resolve().parents[1] / "desk"
"""The environments."""
THREADS = min(2, os.cpu_count() or 1)
_USER = "<|im_start|>user\n"


def prepare_rows(home: Path, held_out: int) -> None:
    """Write the rows of training, and of the two test splits as many as given, and the lock of the tools."""
    if (home / "tool_config.yaml").is_file():
        return
    desk, validation = DESK / "desk.yaml", DESK / "desk_validation.yaml"
    command("data", desk, "--split", "train", "-o", home / "train.parquet")
    command("data", desk, "--split", "test", "-n", str(held_out), "-o", home / "desk.parquet")
    command("data", validation, "--split", "test", "-n", str(held_out), "-o", home / "desk_validation.parquet")
    command("tool-config", desk, validation, "-o", home / "tool_config.yaml")


def evaluated(home: Path, model: Path, environment: str, seed: int, held_out: int) -> Path:
    """The directory of a model's trajectories in an environment's test split; what is missing there is played."""
    out = home / f"raw-{environment}-seed{seed}"
    sampling = ("--temperature", str(HELD_OUT_TEMPERATURE), "--max-tokens", str(TURN_TOKENS), "--seed", str(seed))
    more = ("--split", "test", "-n", str(held_out), "--concurrency", "32", "--out", out)
    command("run", DESK / f"{environment}.yaml", "--engine", model, *sampling, *more, "--resume")
    return out


def warmed_up(home: Path, model: Path, setting: Setting, seed: int) -> Path:
    """The model's directory after the warm-up of a setting with a seed."""
    made = home / f"model-{setting.warm_up}-seed{seed}"
    if made.is_dir():
        return made
    expert, rows = home / f"expert-{setting.warm_up}", home / f"expert-{setting.warm_up}.jsonl"
    if not rows.is_file():
        environment = DESK / f"desk_{setting.warm_up}.yaml"
        more = ("--split", "train", "-n", str(EXPERT_ROWS), "--out", expert, "--resume")
        command("run", environment, "--engine", "expert", *more)
        command("trace", "export", expert, "--sft", "-o", rows)
    torch.set_num_threads(THREADS)
    torch.manual_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(model)
    trained = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).train()
    options = WarmUp(
        steps=setting.warm_up_steps,
        batch_size=12,
        learning_rate=setting.warm_up_rate,
        matrix_learning_rate=None,
        rise=5,
        bfloat16=True,
        context_weight=0.0,
    )
    with bar("warm-up", options.steps) as (progress, task):

        def show(step: int, loss: float) -> None:
            text = f"warm-up, seed {seed}, loss {loss:.3f}"
            progress.update(task, completed=step, description=text)
            if not console.is_terminal:
                console.print(f"step {step} of {options.steps}, {text}", markup=False)

        train_on(trained, Conversations(tokenizer, read_rows(rows), seed), options, show)
    partial = made.with_name(f"{made.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    trained.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    return partial.rename(made)


class Conversations:
    """An expert's conversations in the order of a seed, again and again in other orders; all of them share a prefix."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, rows: Sequence[Mapping[str, Any]], seed: int) -> None:
        conversations = [rendered(tokenizer, row) for row in rows]
        first = conversations[0][0].text
        # Before the first user message: a special token, at which any text may be cut without changing its tokens.
        end = first.index(_USER) + len(_USER)
        self.prefix: list[int] = tokenizer.encode(first[:end], add_special_tokens=False)
        self._given = [
            tokenize(tokenizer, [Piece(pieces[0].text[end:], False), *pieces[1:]]) for pieces in conversations
        ]
        self._order = self._orders(random.Random(seed))

    def draw(self, count: int) -> list[Conversation]:
        return [next(self._order) for _ in range(count)]

    def conversations(self, count: int) -> list[Conversation]:
        return self._given[:count]

    def _orders(self, rng: random.Random) -> Iterator[Conversation]:
        while True:
            yield from rng.sample(self._given, len(self._given))
