"""A tiny model of random weights that ends its turns soon, so that a trajectory has many of them."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from mcp_rollout.rollout.verl_cpu.tiny_model import make_tiny_model


def make_ending_model(path: Path) -> Path:
    """At temperature 1 it samples about five tokens a turn; at temperature 0 it does not end the first turn at all."""
    make_tiny_model(path, vocab_size=512, hidden=64, layers=1)
    model = AutoModelForCausalLM.from_pretrained(path)
    end = model.generation_config.eos_token_id
    with torch.no_grad():
        # A long row of the output matrix: the end is now nearly certain, now nearly impossible. With this sign it is
        # the latter where a turn begins.
        model.get_input_embeddings().weight[end] *= -40
    model.save_pretrained(path)
    return path
