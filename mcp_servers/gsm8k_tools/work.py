"""A solution while it is worked out: each step is an expression, and the next one is built from its value."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from mcp_servers.calculator.arithmetic import ArithmeticRefused, Number, evaluate


@dataclass(frozen=True, slots=True)
class Step:
    what: str
    """What the value is, as half a sentence."""
    expression: str
    value: int


@dataclass(slots=True)
class Work:
    """The stages of a solution in order; the steps of one stage do not need each other's values."""

    stages: list[tuple[Step, ...]] = field(default_factory=list[tuple[Step, ...]])

    def step(self, what: str, expression: str) -> int:
        """Adds a stage of one step and gives its value."""
        (value,) = self.together((what, expression))
        return value

    def together(self, *steps: tuple[str, str]) -> list[int]:
        """Adds a stage of several steps and gives their values. Values are whole: a template's numbers see to that."""
        made = tuple(Step(what, expression, _whole(expression)) for what, expression in steps)
        self.stages.append(made)
        return [step.value for step in made]


def results_within(expression: str) -> set[Number]:
    """The value of an expression and of every operation inside it; a number alone is nobody's result.

    Raises:
        ArithmeticRefused: It is no arithmetic, or has no value.
    """
    evaluate(expression)
    tree = ast.parse(expression.strip(), mode="eval")
    found: set[Number] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp):
            try:
                found.add(evaluate(ast.unparse(node)))
            except ArithmeticRefused:  # written out by ast, a part may come to more characters than the whole
                continue
    return found


def _whole(expression: str) -> int:
    value = evaluate(expression)
    if not isinstance(value, int):
        raise AssertionError(f"{expression} = {value} is no whole number: the template is wrong")
    return value
