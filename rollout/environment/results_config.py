"""Configuration of how tool results are cut."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from rollout.environment.reward_config import Section


class Keep(StrEnum):
    """The part of a long result that is kept."""

    HEAD = "head"
    TAIL = "tail"
    BOTH = "both"


class CutConfig(Section):
    """How much of a tool result enters the context. The trace keeps the whole result."""

    max_tokens: int | None = Field(default=None, ge=16)
    """In tokens of the policy's tokenizer, including the marker of the cut; None disables cutting."""
    keep: Keep = Keep.BOTH
    """Which part of a result stays."""


class CutRules(CutConfig):
    """The default rule for cutting results, and rules for single tools."""

    tools: dict[str, CutConfig] = Field(default_factory=dict)
    """By exposed tool name or a glob of it; the first match applies."""


class ResultsConfig(CutRules):
    """How results are cut when they enter the context."""

    overflow_tokens: int = Field(default=64, ge=16)
    """Results that exceed the trajectory's token budget are cut until this many tokens are left for the answer. If that
    would leave less than this many tokens of a result, the trajectory ends instead."""
