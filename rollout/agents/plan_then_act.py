"""Writes a plan before the first call, and works from it (Plan-and-Solve, arXiv 2305.04091)."""

from __future__ import annotations

from dataclasses import dataclass

from mcp_rollout.rollout.loop.trajectory import ToolAgent
from mcp_rollout.rollout.loop.turns import Turns

PLAN = "First write a plan: the steps in order, each in a line of its own. Call no tool yet, and give no answer."
ACT = "Now carry the plan out, step by step. If a step shows that it is wrong, change it and say so."


@dataclass
class PlanThenAct:
    """Asks for a plan with the task, and then plays as the built-in agent does. The plan is trained, too.

    A policy that calls tools instead of planning has its calls made, and is not asked to act: it does already.

    Args:
        plan: What the policy is asked in addition to the task.
        act: The message to the policy once there is a plan.
        plan_tokens: A bound on the plan's generation; a longer one ends the trajectory as `token_limit`.
    """

    plan: str = PLAN
    act: str = ACT
    plan_tokens: int | None = None

    async def play(self, turns: Turns) -> None:
        await turns.say(self.plan)
        planned = await turns.generate(max_tokens=self.plan_tokens)
        if planned.calls:
            await turns.call_tools()
        else:
            await turns.say(self.act)
        await ToolAgent().play(turns)
