"""Word problems with their expert and score, each problem determined by its task id and a seed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from mcp_servers.calculator.arithmetic import answer_in
from mcp_servers.calculator.stories import Family, Question, Step, StoryProblem, make_problem, questions
from mcp_servers.kit import Call, Expert, ExpertTurn, Message, Score, Split, Splits, texts_for_user
from mcp_servers.kit.records import Difficulty

TASKS = Splits("calculator", {"train": 200, "test": 100})

_DIFFICULTIES: tuple[Difficulty, ...] = ("hard", "easy", "medium", "easy", "medium")
"""The difficulties of consecutive tasks, in a cycle."""
_TOOLS = {"+": "add", "-": "subtract", "*": "multiply", "/": "divide"}


def problem(task: str, seed: int) -> StoryProblem:
    """The problem of this task and seed, the same in every process. Difficulty goes by the stages: 1, 2 or 3.

    Raises:
        LookupError: There is no such task.
    """
    ending = "End your answer with a line of the form 'Answer: N'."
    return make_problem(task, seed, TASKS, _DIFFICULTIES, _questions, ending=ending)


@cache
def _questions(split: Split, difficulty: Difficulty) -> list[tuple[Family, Question]]:
    stages = {"easy": 1, "medium": 2, "hard": 3}[difficulty]
    return [(family, asked) for family, asked in questions(split) if len(asked.steps) == stages]


def expert(problem: StoryProblem) -> Expert:
    turns: list[ExpertTurn] = []
    for stage in problem.story.stages:
        what = " and ".join(step.what for step in stage)
        turns.append(ExpertTurn(thinking=f"I need this first: {what}.", calls=[call(step) for step in stage]))
    told = f"I worked it out step by step.\nAnswer: {problem.answer}"
    return Expert(turns=[*turns, ExpertTurn(thinking="That is the last step.", content=told)])


def call(step: Step) -> Call:
    a, sign, b = step.expression.split()
    return Call(name=_TOOLS[sign], arguments={"a": int(a), "b": int(b)})


def score(problem: StoryProblem, messages: Sequence[Message]) -> Score:
    """1.0 for the right number in the last message's line `Answer: N`, 0.1 for a wrong one.

    Two different answers count as none.
    """
    texts = texts_for_user(messages)
    given = answer_in(texts[-1]) if texts else None
    form, answer = given is not None, given == problem.answer
    return Score(score=0.9 * answer + 0.1 * form, parts={"answer": float(answer), "form": float(form)})
