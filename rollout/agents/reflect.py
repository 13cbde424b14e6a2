"""Lets a second generation review the first answer before it counts (Self-Refine, arXiv 2303.17651)."""

from __future__ import annotations

from dataclasses import dataclass

from mcp_rollout.rollout.loop.turns import Turns

CRITIQUE = (
    "Before this is sent: check it step by step, with the tools where they help. Then write the whole answer again, "
    "corrected where it was wrong."
)


@dataclass
class Reflect:
    """Asks the policy to look at each answer, and gives the user only what it writes then. Both are trained.

    Args:
        rounds: How often an answer is looked at before it counts.
        critique: What the policy is asked.
    """

    rounds: int = 1
    critique: str = CRITIQUE

    def __post_init__(self) -> None:
        if self.rounds < 0:
            raise ValueError("rounds must not be negative")

    async def play(self, turns: Turns) -> None:
        while True:
            await self._work(turns)
            for _ in range(self.rounds):
                await turns.say(self.critique)
                await self._work(turns)
            if not turns.has_user:
                return
            await turns.ask_user()

    async def _work(self, turns: Turns) -> None:
        """Take turns until one has no calls, and is therefore an answer."""
        while (await turns.generate()).calls:
            await turns.call_tools()
