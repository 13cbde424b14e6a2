"""verl's own reward of a trajectory, computed in verl's reward loop while the trajectory is scored."""

from __future__ import annotations

import math
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any, Protocol

from verl.experimental.agent_loop.agent_loop import AgentLoopOutput

from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.environment.reward_config import CUSTOM_PART, Component
from mcp_rollout.rollout.errors import RewardError
from mcp_rollout.rollout.loop.components import EXTRA_KEY, WorldScore, seen_by_rewards, users_reward
from mcp_rollout.rollout.loop.reward import Judged, judged_messages
from mcp_rollout.rollout.trace.record import Trace
from mcp_rollout.rollout.verl.output import to_outputs


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
    end_id: int = 0
    """Stands for the response of a trajectory in which no token was sampled: reward managers skip special tokens."""
    extra: dict[str, Any] = field(default_factory=dict[str, Any])
    """`reward_extra_info` of the last computation."""

    async def __call__(self, environment: Environment, trace: Trace, judged: Judged) -> dict[str, float]:
        # The last sample alone, which is all that verl's reward managers read: verl pads several to one length each in
        # prompts, responses and sums, and then counts the tokens of the last response in the padded sum.
        output = to_outputs(trace, (), pad_token_id=self.end_id)[-1]
        output.reward_score = None  # verl computes what is missing
        handed = {
            "messages": judged_messages(trace, environment.thinking.reward),
            "trace": seen_by_rewards(trace),
            "world": WorldScore(score=judged.score, parts=judged.parts),
            "row": self.row,
        }
        row = {**self.row, "extra_info": {**self.row["extra_info"], EXTRA_KEY: handed}}
        with users_reward("verl's reward", self.timeout_s, key="custom_reward_timeout_s"):
            await self.compute_score([output], kwargs=row)
        value = _number(output.reward_score)
        if value is None:
            raise RewardError(f"verl's reward is {output.reward_score!r:.100}, which is not a finite number")
        self.extra = dict(output.extra_fields["reward_extra_info"])
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
