"""The user: says whether an answer is right and lets the agent try again. No I/O and no await."""

from __future__ import annotations

from dataclasses import dataclass, field

from mcp_servers.calculator.answer import answer_in
from mcp_servers.calculator.arithmetic import Number
from mcp_servers.gsm8k_tools.problems import Problem
from mcp_servers.kit.answers import Reply, Score

MAX_ATTEMPTS = 4
DISCOUNT = 0.8
"""What a right answer is worth, from one attempt to the next."""
STEPS_SHARE = 0.1


@dataclass(kw_only=True, slots=True)
class Attempts:
    """One trajectory: what the agent answered, and what it calculated."""

    problem: Problem
    most: int = MAX_ATTEMPTS
    calculated: set[Number] = field(default_factory=set[Number])
    made: int = 0
    """How many answers the user has judged."""
    right_at: int | None = None
    """The attempt that was right, from 1."""

    def reply(self, message: str) -> Reply:
        """What the user says to the next attempt. A message without one explicit answer is an attempt like any other:
        else guessing would be free.
        """
        self.made += 1
        answer, left = answer_in(message), self.most - self.made
        if answer == self.problem.answer:
            self.right_at = self.made
            return Reply(message="That is right. Thank you!", done=True)
        said = "I see no single line 'Answer: N'." if answer is None else "That is not right."
        if left == 0:
            return Reply(message=f"{said} Let us leave it at that.", done=True)
        tries = "one more try" if left == 1 else f"{left} more tries"
        return Reply(message=f"{said} You have {tries}: go through the steps again.", done=False)

    def score(self) -> Score:
        """``0.9 * 0.8 ** (k - 1) + 0.1 * steps`` where attempt k was right, ``0.1 * steps`` where none was.

        `steps` is the share of the solution's intermediate results that the calculator came to. From twice as many
        results as the solution has on, further ones count against it: else trying out all numbers would pay.
        """
        needed = {step.value for step in self.problem.steps}
        steps = len(needed & self.calculated) / max(len(needed), len(self.calculated) / 2)
        answer = DISCOUNT ** (self.right_at - 1) if self.right_at is not None else 0.0
        total = (1 - STEPS_SHARE) * answer + STEPS_SHARE * steps
        return Score(score=total, parts={"answer": answer, "steps": steps})
