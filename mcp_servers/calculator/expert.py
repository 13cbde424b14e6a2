"""The scripted expert for the word problems, and the score of an answer."""

from __future__ import annotations

from collections.abc import Sequence

from mcp_servers.calculator.answer import answer_in
from mcp_servers.calculator.problems import Problem
from mcp_servers.kit import Call, Expert, ExpertTurn, Message, Score


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
    given = answer_in(said[-1]) if said else None
    form, answer = given is not None, given == problem.answer
    return Score(score=0.9 * answer + 0.1 * form, parts={"answer": float(answer), "form": float(form)})
