"""verl's own reward beside an environment's: its `reward.custom_reward_function`, reward manager or reward model.

`rollout.verl.reward_loop` computes it.
"""

from __future__ import annotations

from enum import StrEnum

from omegaconf import DictConfig, OmegaConf

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.environment.reward_config import CUSTOM_PART, Component

_FUNCTION_KEY = "reward.custom_reward_function.path"


class CustomReward(StrEnum):
    """How verl's own reward and that of the environment make one."""

    REPLACE = "replace"
    """verl's is the reward. The environment's score and parts are computed and recorded, with weight 0."""
    ADD = "add"
    """The sum of both."""
    IGNORE = "ignore"
    """The environment's is the reward, and verl's is computed for rows of other agent loops only."""


def verls_reward(config: DictConfig) -> str | None:
    """The key with which verl's configuration asks for a reward of its own; None if it does not."""
    reward = config.reward
    if OmegaConf.select(reward, "custom_reward_function.path"):
        return _FUNCTION_KEY
    if reward.reward_manager.source == "importlib":
        return "reward.reward_manager.module.path"
    return "reward.reward_model.enable" if reward.reward_model.enable else None


def with_verls_reward(environment: Environment, use: CustomReward | None, *, asked: str, key: str) -> Environment:
    """The environment with the weights that verl's reward makes of its own.

    Args:
        use: How both are combined; None is enough where the environment has no reward.
        asked: The key of verl's that asks for its reward.
        key: The key of `use`.

    Raises:
        ConfigError: both give a reward, and `use` does not say how they are combined.
    """
    if use is None and environment.is_rewarded:
        problem = f"{asked} gives a reward, and so does the environment {environment.name}"
        remedy = f"say which counts: one of {', '.join(CustomReward)}"
        raise ConfigError(problem, key=key, remedy=remedy)
    if use is CustomReward.IGNORE:
        return environment
    weights = environment.reward.weights
    if use is not CustomReward.ADD:
        weights = dict.fromkeys([*weights, Component.SCORE.value, Component.TURNS.value], 0.0)
    reward = environment.reward.model_copy(update={"weights": {**weights, CUSTOM_PART: 1.0}})
    return environment.model_copy(update={"reward": reward})


def check_custom_reward(config: DictConfig, use: CustomReward | None, *, key: str) -> None:
    """Validate that the reward that verl's configuration asks for can be computed while trajectories are scored.

    Raises:
        ConfigError: verl reads another key, the function cannot be imported, or verl would compute the reward later.
    """
    from verl.trainer.ppo.reward import get_custom_reward_fn

    if OmegaConf.select(config, "custom_reward_function.path"):
        raise ConfigError("is not read by this verl", key="custom_reward_function", remedy=f"set {_FUNCTION_KEY}")
    asked = verls_reward(config)
    if asked is None:
        if use is not None:
            raise ConfigError(f"is {use}, and verl has no reward function", key=key, remedy=f"set {_FUNCTION_KEY}")
        return
    model = config.reward.reward_model
    if model.enable and not model.enable_resource_pool:
        problem = "scores batches after the rollout, in place of the environment's reward"
        remedy = "set reward.reward_model.enable_resource_pool=True"
        raise ConfigError(problem, key="reward.reward_model.enable", remedy=remedy)
    if use is CustomReward.IGNORE:
        return
    try:
        get_custom_reward_fn(config)
    except Exception as error:  # the boundary of a user's module
        raise ConfigError(f"cannot be imported: {error}", key=_FUNCTION_KEY, remedy="correct file and name") from error
    agent = config.actor_rollout_ref.rollout.agent
    if not config.trainer.use_v1 or not agent.agent_loop_manager_class:
        problem = "is computed by our agent loop worker, which this configuration does not start"
        remedy = "set trainer.use_v1=True and agent_loop_manager_class as configs/mcp_grpo.yaml does"
        raise ConfigError(problem, key=asked, remedy=remedy)
