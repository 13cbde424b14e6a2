"""The user: says whether an answer is right and lets the agent try again. No I/O and no await."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from mcp_servers.calculator.arithmetic import Number
from mcp_servers.gsm8k_tools.problems import Problem
from mcp_servers.kit.answers import Reply, Score

MAX_ATTEMPTS = 4
DISCOUNT = 0.8
"""What a right answer is worth, from one attempt to the next."""
STEPS_SHARE = 0.1

_ANSWER = re.compile(r"^\W*Answer:\W*?(-?\d[\d,]*(?:\.\d+)?)\W*$", re.MULTILINE)


class OutOfOrder(ValueError):
    """The sequence number is neither the next one nor one that was answered; `str()` says which was expected."""


@dataclass(kw_only=True, slots=True)
class Attempts:
    """One trajectory: what the agent answered, and what it calculated."""

    problem: Problem
    most: int = MAX_ATTEMPTS
    calculated: set[Number] = field(default_factory=set[Number])
    replies: list[Reply] = field(default_factory=list[Reply])
    right_at: int | None = None
    """The attempt that was right, from 1."""

    def reply(self, seq: int, message: str) -> Reply:
        """What the user says to attempt number `seq`. One that was answered before gets the same answer, and a message
        without one explicit answer is an attempt like any other: else guessing would be free.

        Raises:
            OutOfOrder: `seq` skips a number, or comes after the user left.
        """
        if 1 <= seq <= len(self.replies):
            return self.replies[seq - 1]
        if seq != len(self.replies) + 1 or (self.replies and self.replies[-1].done):
            over = " and the user has left" if self.replies and self.replies[-1].done else ""
            raise OutOfOrder(f"attempt {seq} is out of order: {len(self.replies)} were answered{over}")
        self.replies.append(self._judge(seq, message))
        return self.replies[-1]

    def _judge(self, seq: int, message: str) -> Reply:
        answer, left = answer_in(message), self.most - seq
        if answer == self.problem.answer:
            self.right_at = seq
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


def answer_in(message: str) -> float | None:
    """The number in the message's explicit answer; two different ones are none, or naming many would pay."""
    answers = {float(found.replace(",", "")) for found in _ANSWER.findall(message)}
    return answers.pop() if len(answers) == 1 else None
