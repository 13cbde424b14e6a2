"""Tries again after feedback, as AReaL's multi-turn math agent does (`areal/workflow/multi_turn.py`)."""

from __future__ import annotations

from dataclasses import dataclass

from mcp_rollout.rollout.loop.turns import Turns

FEEDBACK = (
    "Your answer is either wrong or cannot be read. Find the step that went wrong, calculate it again with the tools, "
    "and answer anew in the same form."
)


@dataclass
class RetryWithFeedback:
    """Works with the tools until it answers; if the user is not satisfied, adds feedback to the reply and tries again.

    The user of `gsm8k_tools` says whether the answer is right, and ends the trajectory when it is.

    Args:
        attempts: Answers that the agent gives at most. The user may take fewer.
        feedback: The message to the policy after each reply, appended to the user's.
    """

    attempts: int = 4
    feedback: str = FEEDBACK

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError("attempts must be at least 1")

    async def play(self, turns: Turns) -> None:
        for attempt in range(self.attempts):
            if attempt:
                await turns.say(self.feedback)
            await self._work(turns)
            await turns.ask_user()  # raises TrajectoryOver where the answer is right

    async def _work(self, turns: Turns) -> None:
        """Take turns until one has no calls, and is therefore an answer."""
        while (await turns.generate()).calls:
            await turns.call_tools()
