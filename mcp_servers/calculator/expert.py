"""The scripted expert for the word problems, and the score of an answer."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mcp_servers.calculator.problems import Problem
from mcp_servers.kit import Call, Expert, ExpertTurn, Message, Score

_ANSWER = re.compile(r"^\W*Answer:\W*?(-?\d[\d,]*(?:\.\d+)?)\W*$", re.MULTILINE)


def expert(problem: Problem) -> Expert:
    turns: list[ExpertTurn] = []
    for stage in problem.stages:
        calls = [Call(name=name, arguments={"a": a, "b": b}) for name, a, b in stage]
        what = " and ".join(f"{name} {a} and {b}" for name, a, b in stage)
        turns.append(ExpertTurn(thinking=f"Next I {what}.", calls=calls))
    told = f"I worked it out step by step.\nAnswer: {problem.answer}"
    return Expert(turns=[*turns, ExpertTurn(thinking="That is the last step.", content=told)])


def score(problem: Problem, messages: Sequence[Message]) -> Score:
    """1.0 for the right number in one explicit line `Answer: N` of the last message, 0.1 for a wrong one.

    Two different answers are none: otherwise naming many numbers would pay.
    """
    said = [message.text for message in messages if message.is_told]
    answers = {found.replace(",", "") for found in _ANSWER.findall(said[-1])} if said else set[str]()
    form = len(answers) == 1
    answer = form and float(answers.pop()) == problem.answer
    return Score(score=0.9 * answer + 0.1 * form, parts={"answer": float(answer), "form": float(form)})
