"""`--tokenizer MODEL`: what tools cost in a prompt of that model."""

from __future__ import annotations

from rollout.doctor.fidelity import TokenCounter


def load_counter(tokenizer: str | None) -> TokenCounter | None:
    """None where no tokenizer is named. Raises ConfigError where there is none at that place."""
    if tokenizer is None:
        return None
    from rollout.tokens.counting import ToolTokenCounter

    return ToolTokenCounter(tokenizer)
