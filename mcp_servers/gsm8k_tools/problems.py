"""The problems, their scripted expert, and the user who lets the agent try again."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from mcp_servers import kit
from mcp_servers.calculator.arithmetic import Number, answer_in
from mcp_servers.gsm8k_tools.templates import TEMPLATES, Step, Work
from mcp_servers.kit import Call, Expert, ExpertTurn, Reply, Score, Splits

TASKS = Splits("gsm8k", {"train": 400, "test": 100})

MAX_ATTEMPTS = 4
DISCOUNT = 0.8
"""Factor by which a right answer loses value at each further attempt."""
STEPS_SHARE = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem(kit.Problem):
    """A word problem; `difficulty` goes by the number of steps: 2, 3, or 4 and 5."""

    stages: tuple[tuple[Step, ...], ...]
    """The solution; the steps of one stage do not need each other's values."""

    @property
    def steps(self) -> list[Step]:
        return [step for stage in self.stages for step in stage]

    @property
    def answer(self) -> int:
        return self.stages[-1][-1].value


def problem(task: str, seed: int) -> Problem:
    """The problem of this task and seed, the same in every process.

    Raises:
        LookupError: There is no such task.
    """
    _, index = TASKS.parse(task)
    work = Work()
    question = TEMPLATES[index % len(TEMPLATES)](Random(f"{task}/{seed}"), work)
    steps = sum(map(len, work.stages))
    return Problem(
        task=task,
        seed=seed,
        prompt=f"{question} Give the result in a line of its own: 'Answer: N'.",
        difficulty="easy" if steps == 2 else "medium" if steps == 3 else "hard",
        stages=tuple(work.stages),
    )


def expert(problem: Problem) -> Expert:
    turns = [_calculate(stage) for stage in problem.stages]
    last = problem.steps[-1]
    told = f"The last step gives the {last.what}: {last.value}.\nAnswer: {problem.answer}"
    return Expert(turns=[*turns, ExpertTurn(thinking="That was the last step.", content=told)])


def _calculate(stage: tuple[Step, ...]) -> ExpertTurn:
    calls = [Call(name="calculate", arguments={"expression": step.expression}) for step in stage]
    return ExpertTurn(thinking=f"I need the {' and the '.join(step.what for step in stage)}.", calls=calls)


@dataclass(kw_only=True, slots=True)
class Attempts:
    """A trajectory's answers and calculations."""

    problem: Problem
    most: int = MAX_ATTEMPTS
    calculated: set[Number] = field(default_factory=set[Number])
    made: int = 0
    """Number of answers that the user judged."""
    right_at: int | None = None
    """The attempt that was right, from 1."""

    def reply(self, message: str) -> Reply:
        """The user's reply to the next attempt. A message without exactly one answer counts as an attempt, or guessing
        would be free.
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
        """``0.9 * 0.8 ** (k - 1) + 0.1 * steps`` if attempt k was right, ``0.1 * steps`` if none was.

        `steps` is the share of the solution's intermediate results that the calculator returned. Results beyond twice
        the solution's number reduce it, or trying all numbers would pay.
        """
        needed = {step.value for step in self.problem.steps}
        steps = len(needed & self.calculated) / max(len(needed), len(self.calculated) / 2)
        answer = DISCOUNT ** (self.right_at - 1) if self.right_at is not None else 0.0
        total = (1 - STEPS_SHARE) * answer + STEPS_SHARE * steps
        return Score(score=total, parts={"answer": answer, "steps": steps})
