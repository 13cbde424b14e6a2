"""What makes several training samples of one trajectory."""

from __future__ import annotations

from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.environment.sections import Strategy, ThinkingContext
from mcp_rollout.rollout.loop.agent import Reopens, build_agent

STRATEGY_KEY = "strategy.use"
"""The key of what makes several of nearly every trajectory; the others may."""


def several_samples(environment: Environment) -> dict[str, str]:
    """What makes, or may make, several samples of a trajectory: subject and verb, by the key in the environment's file.

    Empty where a trajectory is one sample.

    Raises:
        ConfigError: the environment's agent cannot be built.
    """
    use, drops = environment.strategy.use, environment.thinking.context is ThinkingContext.DROP_PREVIOUS
    return {
        key: what
        for key, holds, what in (
            (STRATEGY_KEY, use in (Strategy.SINGLE_TURN, Strategy.COMPACT), f"{use} makes"),
            # Only a further user message drops thinking.
            ("thinking.context", drops and environment.has_user_messages, "drop_previous makes"),
            ("agent.use", isinstance(build_agent(environment), Reopens), "a program may make"),
        )
        if holds
    }
