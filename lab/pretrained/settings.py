"""What the experiment may choose, and what it chooses among: on the validation wordings, never on the held-out ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import torch

WarmedUpOn = Literal["half", "blind", "form"]
"""The expert that a warm-up imitates: right half the time, a third of the time, or in another domain only."""
RIGHT: Mapping[WarmedUpOn, float] = MappingProxyType({"half": 1 / 2, "blind": 1 / 3})
"""Share of the tasks in which an expert does what fits."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    warm_up: WarmedUpOn = "half"
    warm_up_steps: int = 24
    warm_up_rate: float = 3e-4
    learning_rate: float = 3e-5
    """Of GRPO, constant."""
    adam_eps: float = 1e-8
    kl: float = 0.02
    """Weight in the loss of the divergence from the warmed-up model."""
    rows: int = 18
    samples: int = 4
    """Of each row."""
    temperature: float = 1.0
    """Of sampling in training."""
    steps: int = 16


SETTINGS = {
    "half": Setting(),
    "half-slow": Setting(learning_rate=8e-6),
    "half-wide": Setting(learning_rate=8e-5, adam_eps=1e-5),
    "half-few": Setting(rows=9, samples=6),
    "half-short": Setting(warm_up_steps=12),
    "half-long": Setting(warm_up_steps=48),
    "blind": Setting(warm_up="blind"),
    "form": Setting(warm_up="form"),
}
CHOSEN = "half"
"""The setting of the measurement."""
SEEDS = (0, 1, 2)
"""Of the warm-up's order of conversations, GRPO's order of rows, and sampling; all begin with the same weights."""
HELD_OUT_TEMPERATURE = 0.7
"""Of all evaluations."""
EXPERT_ROWS = 240
BFLOAT16 = bool(torch.cpu.get_capabilities().get("amx_bf16"))
"""Whether to compute in bfloat16: with AMX a pass takes 0.4 of float32's time, without it a step 1.35."""
TURN_TOKENS = 48
"""Most tokens of a turn; a call has about 25."""
EVERY = 8
"""Steps between two evaluations, at which checkpoints are written as well."""
