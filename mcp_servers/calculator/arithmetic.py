"""Arithmetic on untrusted expressions, bounded in size: only numbers and operators. Also reads `Answer: N` lines."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable
from typing import Annotated

from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

Number = int | float

MAX_CHARACTERS = 200
MAX_MAGNITUDE = 10**18
MAX_EXPONENT = 64

Expression = Annotated[
    str,
    Field(
        description="Numbers, parentheses and + - * / // % **, for example (3 + 4) * 12",
        max_length=MAX_CHARACTERS,
    ),
]
"""A tool's argument for `evaluate`."""

_BINARY: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda left, right: left / right,
    ast.FloorDiv: lambda left, right: left // right,
    ast.Mod: operator.mod,
    ast.Pow: lambda left, right: left**right,
}
_UNARY: dict[type[ast.unaryop], Callable[[Number], Number]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}
_ANSWER = re.compile(r"^[^\w\n]*Answer:\W*?(-?\d[\d,]*+(?:\.\d+)?)\W*$", re.MULTILINE)
"""It takes time linear in the text: a policy may write anything, and other trajectories wait for this server."""


class ArithmeticRefused(ToolError):
    """The expression is not arithmetic, has no value, or is too large; the message says which."""


def evaluate(expression: str) -> Number:
    """The value of an expression over numbers, parentheses and ``+ - * / // % **``.

    Raises:
        ArithmeticRefused: The expression has no value within the bounds. No other exception is raised.
    """
    if len(expression) > MAX_CHARACTERS:
        raise ArithmeticRefused(f"the expression is longer than {MAX_CHARACTERS} characters")
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise ArithmeticRefused(f"{expression!r} is not an arithmetic expression") from error
    return tidy(_value(tree.body))


def results_within(expression: str) -> set[Number]:
    """The value of an expression and of every operation in it; a single number has no results.

    Raises:
        ArithmeticRefused: As for `evaluate`.
    """
    evaluate(expression)
    found: set[Number] = set()
    for node in ast.walk(ast.parse(expression.strip(), mode="eval")):
        if isinstance(node, ast.BinOp):
            try:
                found.add(evaluate(ast.unparse(node)))
            except ArithmeticRefused:  # unparsed, a part can have more characters than the whole expression
                continue
    return found


def tidy(value: Number) -> Number:
    """Returns `value`, as an integer if it is a whole number.

    Raises:
        ArithmeticRefused: `value` is not finite or beyond `MAX_MAGNITUDE`.
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise ArithmeticRefused("the result is not a finite number")
    if abs(value) > MAX_MAGNITUDE:
        raise ArithmeticRefused("a number is beyond 10**18")
    return int(value) if value == int(value) else value


def answer_in(message: str) -> float | None:
    """The number in the message's line `Answer: N`; None if two lines differ, or listing many numbers would pay."""
    answers = {float(found.replace(",", "")) for found in _ANSWER.findall(message)}
    return answers.pop() if len(answers) == 1 else None


def _value(node: ast.expr) -> Number:
    match node:
        case ast.Constant(value=bool()):
            raise ArithmeticRefused("True and False are not numbers")
        case ast.Constant(value=int() | float() as number):
            return tidy(number)
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
            return _UNARY[type(op)](_value(operand))
        case ast.BinOp(op=op, left=left, right=right) if type(op) in _BINARY:
            return _apply(op, _value(left), _value(right))
        case _:
            raise ArithmeticRefused("only numbers, parentheses and + - * / // % ** are allowed")


def _apply(op: ast.operator, left: Number, right: Number) -> Number:
    # Checked before the operation: computing 2**10**9 would take all of the process's memory.
    if isinstance(op, ast.Pow) and abs(right) > MAX_EXPONENT:
        raise ArithmeticRefused(f"exponents go up to {MAX_EXPONENT}")
    try:
        result = _BINARY[type(op)](left, right)
    except ZeroDivisionError as error:
        raise ArithmeticRefused("division by zero") from error
    except OverflowError as error:
        raise ArithmeticRefused("a number is beyond 10**18") from error
    if isinstance(result, complex):
        raise ArithmeticRefused("a root of a negative number is not a real number")
    return tidy(result)
