"""verl's own reward of a trajectory: its `reward.custom_reward_function`, reward manager or reward model.

It is computed in verl's reward loop while the trajectory is scored, so that traces and statistics have it like the
environment's own parts.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

import anyio
from omegaconf import DictConfig, OmegaConf
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput

from gateway.errors import ConfigError
from rollout.environment.config import Environment
from rollout.environment.reward_config import CUSTOM_PART, Component
from rollout.errors import RewardError
from rollout.loop.components import WorldScore
from rollout.loop.limits import cancellations
from rollout.loop.reward import Judged, judged_messages
from rollout.trace.record import Trace
from rollout.verl.output import to_outputs

EXTRA_KEY = "mcp_trajectory"
"""What a reward function finds in `extra_info`, beside what the row has there."""
_FUNCTION_KEY = "reward.custom_reward_function.path"


class CustomReward(StrEnum):
    """How verl's own reward and that of the environment make one."""

    REPLACE = "replace"
    """verl's is the reward. The environment's score and parts are computed and recorded, with weight 0."""
    ADD = "add"
    """The sum of both."""
    IGNORE = "ignore"
    """The environment's is the reward, and verl's is computed for rows of other agent loops only."""


class ComputeScore(Protocol):
    """`_compute_score` of verl's agent loop worker, which assigns score and extra information to the last output."""

    def __call__(self, outputs: list[AgentLoopOutput], kwargs: dict[str, Any]) -> Awaitable[None]: ...


@dataclass(kw_only=True, slots=True)
class VerlReward:
    """Computes verl's reward of one trajectory, as `rollout.loop.reward.TrainersReward`."""

    compute_score: ComputeScore
    row: dict[str, Any]
    """The row, as verl gave it to the agent loop."""
    timeout_s: float
    extra: dict[str, Any] = field(default_factory=dict[str, Any])
    """`reward_extra_info` of the last computation."""

    async def __call__(self, environment: Environment, trace: Trace, judged: Judged) -> dict[str, float]:
        outputs = to_outputs(trace, ())
        outputs[-1].reward_score = None  # verl computes what is missing
        handed = {
            "messages": judged_messages(trace, environment.thinking.reward),
            "trace": trace,
            "world": WorldScore(score=judged.score, parts=judged.parts),
            "row": self.row,
        }
        row = {**self.row, "extra_info": {**self.row["extra_info"], EXTRA_KEY: handed}}
        requests = cancellations()
        try:
            with anyio.fail_after(self.timeout_s):
                await self.compute_score(outputs, kwargs=row)
        except TimeoutError as error:
            raise RewardError(f"verl's reward took longer than custom_reward_timeout_s={self.timeout_s:g}") from error
        except (Exception, asyncio.CancelledError) as error:  # the boundary of a user's function, in another process
            if isinstance(error, asyncio.CancelledError) and cancellations() > requests:
                raise
            raise RewardError(f"verl's reward raised {type(error).__name__}: {error}") from error
        value = _number(outputs[-1].reward_score)
        if value is None:
            raise RewardError(f"verl's reward is {outputs[-1].reward_score!r:.100}, which is not a finite number")
        self.extra = dict(outputs[-1].extra_fields["reward_extra_info"])
        if taken := sorted(name for name in self.extra if name in environment.reward.reported or name[:4] == "mcp_"):
            raise RewardError(f"the reward function returns {', '.join(taken)}, which the environment's reward has too")
        numbers = {name: _number(given) for name, given in self.extra.items() if name != Component.SCORE}
        return {CUSTOM_PART: value} | {name: number for name, number in numbers.items() if number is not None}


def _number(value: Any) -> float | None:
    """The number as a float, also that of a tensor or an array of one; None if it is not a finite number."""
    if hasattr(value, "item"):
        try:
            value = value.item()
        except (ValueError, RuntimeError):  # several numbers
            return None
    return float(value) if isinstance(value, bool | int | float) and math.isfinite(value) else None


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
        raise ConfigError(problem, file=environment.file, key=key, remedy=remedy)
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
    if use is CustomReward.IGNORE:
        return
    try:
        get_custom_reward_fn(config)
    except Exception as error:  # the boundary of a user's module
        raise ConfigError(f"cannot be imported: {error}", key=_FUNCTION_KEY, remedy="correct file and name") from error
    model, agent = config.reward.reward_model, config.actor_rollout_ref.rollout.agent
    if model.enable and not model.enable_resource_pool:
        problem = "scores batches after the rollout, in place of the environment's reward"
        remedy = "set reward.reward_model.enable_resource_pool=True"
        raise ConfigError(problem, key="reward.reward_model.enable", remedy=remedy)
    if not config.trainer.use_v1 or not agent.agent_loop_manager_class:
        problem = "is computed by our agent loop worker, which this configuration does not start"
        remedy = "set trainer.use_v1=True and agent_loop_manager_class as configs/mcp_grpo.yaml does"
        raise ConfigError(problem, key=asked, remedy=remedy)
