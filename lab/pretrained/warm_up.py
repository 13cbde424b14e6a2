"""Supervision of a model on an expert's conversations, in a process of its own: its memory is verl's afterwards.

    python -m lab.pretrained.warm_up MODEL ROWS.jsonl OUT [--seed 0] [--steps 12]

ROWS are what `mcp-rollout trace export --sft` writes. OUT appears whole or not at all.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from lab.demo.display import bar, console
from lab.demo.variation import Piece
from lab.demo.warm_up import Conversation, WarmUp, read_rows, rendered, tokenize, train_on
from lab.pretrained.settings import BFLOAT16

THREADS = int(os.environ.get("OMP_NUM_THREADS", min(2, os.cpu_count() or 1)))
BATCH = 12
_USER = "<|im_start|>user\n"


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


def warm_up(model: Path, rows: Path, out: Path, *, seed: int, steps: int, rate: float) -> None:
    torch.set_num_threads(THREADS)
    tokenizer = AutoTokenizer.from_pretrained(model)
    trained = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).train()
    options = WarmUp(
        steps=steps,
        batch_size=BATCH,
        learning_rate=rate,
        matrix_learning_rate=None,
        rise=5,
        bfloat16=BFLOAT16,
        context_weight=0.0,
    )
    with bar("warm-up", steps) as (progress, task):

        def show(step: int, loss: float) -> None:
            text = f"warm-up, seed {seed}, loss {loss:.3f}"
            progress.update(task, completed=step, description=text)
            if not console.is_terminal:
                console.print(f"step {step} of {steps}, {text}", markup=False)

        train_on(trained, Conversations(tokenizer, read_rows(rows), seed), options, show)
    partial = out.with_name(f"{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    trained.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    partial.rename(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("rows", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=0, help="of the order of conversations")
    parser.add_argument("--steps", type=int, default=12, help=f"of {BATCH} conversations")
    parser.add_argument("--rate", type=float, default=3e-4, help="of AdamW, at its peak")
    given = parser.parse_args()
    warm_up(given.model, given.rows, given.out, seed=given.seed, steps=given.steps, rate=given.rate)


if __name__ == "__main__":
    main()
