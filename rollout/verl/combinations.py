"""Combinations of an environment's policies with verl's settings that cannot be trained."""

from __future__ import annotations

from omegaconf import DictConfig

from gateway.errors import ConfigError
from rollout.config import Environment, ThinkingContext

WITHOUT_THINK_TAGS = frozenset({"gpt-oss", "seed", "gemma4"})
"""verl's tool formats whose models do not think between <think> and </think>."""


def check_thinking(environment: Environment, config: DictConfig) -> None:
    """Raises ConfigError where the thinking policy needs another trainer, or another model."""
    thinking = environment.thinking
    drops = thinking.context is ThinkingContext.DROP_PREVIOUS
    if drops and not config.trainer.use_v1:
        raise ConfigError(
            "drop_previous makes several training samples of one trajectory, and verl's v0 trainer takes one",
            file=environment.file,
            key="thinking.context",
            remedy="set trainer.use_v1=True, or keep the thinking",
        )
    tool_format = str(config.actor_rollout_ref.rollout.multi_turn.format)
    for key, is_used in {
        "thinking.context": drops,
        "thinking.tokens_per_turn": thinking.tokens_per_turn is not None,
    }.items():
        if is_used and tool_format in WITHOUT_THINK_TAGS:
            raise ConfigError(
                f"needs thinking between <think> and </think>, which models of the format {tool_format!r} do not write",
                file=environment.file,
                key=key,
                remedy="leave it out",
            )
