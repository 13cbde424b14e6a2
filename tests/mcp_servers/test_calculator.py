"""The calculator: right, bounded, and a small environment of its own."""

from __future__ import annotations

import operator
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import CallToolResult

from mcp_rollout.mcp_servers.calculator.arithmetic import ArithmeticRefused, evaluate
from mcp_rollout.mcp_servers.calculator.server import TASKS, problem

pytestmark = pytest.mark.anyio
Seats = Callable[..., AbstractAsyncContextManager[Callable[[str], Any]]]
ErrorOf = Callable[[CallToolResult], str]
TASK = TASKS.names("train")[0]


@pytest.mark.parametrize(
    "expression",
    [
        "2**10**9",
        "9**9**9",
        "(10**18)*10",
        "1e308*10",
        "10**64",
        "2.5**64",
        "-(2**64)",
        "1/0",
        "0**-1",
        "7 % 0",
        "(-8)**0.5",
        "__import__('os').system('true')",
        "().__class__",
        "[1]*10**9",
        "'a'*10",
        "True + 1",
        "1j",
        "x",
        "(lambda: 1)()",
        "1 if 1 else 2",
        "1 < 2",
        "",
        "1 +",
        "(" * 150 + "1" + ")" * 40,
        "-" * 199 + "1" + "+1" * 50,
        "1" * 201,
        "\x00",
        "1; 2",
    ],
)
async def test_what_is_not_small_plain_arithmetic_is_refused(
    calculator_players: Seats, error_of: ErrorOf, expression: str
):
    async with calculator_players() as player:
        error_of(await player("a").call("evaluate", expression=expression))
    with pytest.raises(ArithmeticRefused):
        evaluate(expression)


@pytest.mark.parametrize(
    ("expression", "value"),
    [("(3 + 4) * 12", 84), ("2**10", 1024), ("7 / 2", 3.5), ("8 / 2", 4), ("-7 // 2", -4), (" +1.5 ", 1.5)],
)
def test_plain_arithmetic_has_its_value(expression: str, value: float):
    assert evaluate(expression) == value


@given(st.text(alphabet="0123456789+-*/%(). eE_ax'[]", max_size=60))
def test_any_text_is_evaluated_or_refused_and_nothing_else(expression: str):
    try:
        value = evaluate(expression)
    except ArithmeticRefused:
        return
    assert abs(value) <= 10**18


@given(st.integers(-(10**6), 10**6), st.integers(-(10**6), 10**6), st.sampled_from("+-*"))
def test_integers_are_exact(a: int, b: int, sign: str):
    operators = {"+": operator.add, "-": operator.sub, "*": operator.mul}
    assert evaluate(f"({a}) {sign} ({b})") == operators[sign](a, b)


@pytest.mark.parametrize(
    ("said", "score"),
    [
        ("{n}", 0.0),
        ("The answer is {n}.", 0.0),
        ("Answer: {n}", 1.0),
        ("So:\n**Answer: {n}**", 1.0),
        ("Answer: {n}.0", 1.0),
        ("Answer: {wrong}", 0.1),
        ("Answer: {wrong}\nAnswer: {n}", 0.0),
        ("Answer: {n}\nAnswer: {n}", 1.0),
        ("Answer: {n} or {wrong}", 0.0),
        ("", 0.0),
    ],
)
async def test_only_one_explicit_answer_counts(calculator_players: Seats, said: str, score: float):
    answer = problem(TASK, 3).answer
    async with calculator_players() as player:
        one = player("a")
        await one.begin(TASK, 3)
        await one.say(said.format(n=answer, wrong=answer + 1))
        assert (await one.score())["score"] == pytest.approx(score)


async def test_an_answer_before_the_last_message_or_beside_calls_does_not_count(calculator_players: Seats):
    answer = f"Answer: {problem(TASK, 3).answer}"
    async with calculator_players() as player:
        one = player("a")
        await one.begin(TASK, 3)
        await one.say(answer)
        await one.say("I am not sure.")
        assert (await one.score())["score"] == 0.0
        await one.say(answer)
        one.messages[-1]["tool_calls"] = [{"function": {"name": "add", "arguments": "{}"}}]
        assert (await one.score())["score"] == 0.0
