"""A tiny model that has been taught one conversation, so that its samples contain tool calls."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from mcp_rollout.rollout.verl_cpu.tiny_model import make_tiny_model


def teach(
    path: Path,
    messages: Sequence[dict[str, Any]],
    tools: Sequence[dict[str, Any]],
    *,
    steps: int = 80,
    vocab_size: int = 1024,
    learns_prompt: bool = True,
    or_else: Sequence[dict[str, Any]] | None = None,
) -> Path:
    """Make a tiny model and overfit it to `messages`; about ten seconds.

    Args:
        or_else: A second conversation, learnt beside the first, so that samples are of both.
    """
    corpus = [str(tools), *(str(message) for message in messages)]
    make_tiny_model(path, corpus=corpus, vocab_size=vocab_size, hidden=64, layers=2)
    return overfit(path, messages, tools, steps=steps, rate=4e-3, learns_prompt=learns_prompt, or_else=or_else)


def overfit(
    path: Path,
    messages: Sequence[dict[str, Any]],
    tools: Sequence[dict[str, Any]],
    *,
    steps: int,
    rate: float,
    learns_prompt: bool = True,
    or_else: Sequence[dict[str, Any]] | None = None,
) -> Path:
    """Train the model of a directory on one conversation, with its own template.

    Args:
        or_else: A second conversation, which counts as much in each step.
        learns_prompt: Whether what comes before the first answer counts; of a long prompt nothing else would be learnt.
    """
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)

    def labelled(messages: Sequence[dict[str, Any]]) -> tuple[torch.Tensor, torch.Tensor]:
        encoded = tokenizer.apply_chat_template(list(messages), tools=list(tools), tokenize=True, return_dict=False)
        ids = torch.tensor([encoded])
        labels = ids.clone()
        if not learns_prompt:
            opening = messages[: [message["role"] for message in messages].index("assistant")]
            prompt = tokenizer.apply_chat_template(opening, tools=list(tools), tokenize=True, return_dict=False)
            labels[:, : len(prompt)] = -100
        return ids, labels

    learnt = [labelled(conversation) for conversation in (messages, or_else) if conversation is not None]
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    for _ in range(steps):
        for ids, labels in learnt:
            (model(input_ids=ids, labels=labels).loss / len(learnt)).backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(path)
    return path
