"""Combinations of an environment's policies with verl's settings that cannot be trained."""

from __future__ import annotations

from omegaconf import DictConfig

from gateway.errors import ConfigError
from rollout.config import Environment, ThinkingContext
from rollout.thinking import check_thoughts


def check_thinking(environment: Environment, config: DictConfig) -> None:
    """Raises ConfigError where the thinking policy needs another trainer, or another model."""
    if environment.thinking.context is ThinkingContext.DROP_PREVIOUS and not config.trainer.use_v1:
        raise ConfigError(
            "drop_previous makes several training samples of one trajectory, and verl's v0 trainer takes one",
            file=environment.file,
            key="thinking.context",
            remedy="set trainer.use_v1=True, or keep the thinking",
        )
    check_thoughts(environment, str(config.actor_rollout_ref.rollout.multi_turn.format))
