"""Execute calls as the package does, without evaluating any text.

The package writes each call as Python (`mkdir(dir_name='temp')`), puts the name of an instance in front of each
method's name, and evaluates that. Here the same text is only parsed: it has to be one call of a method with literal
arguments.
"""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Mapping
from typing import Any, cast

from mcp_rollout.mcp_servers.bfcl import package

FAILED = "Error during execution: "
"""Begins the result of a call that raised an exception, in the package's words."""


class Instances:
    """The API objects of one side, the model's or the ground truth's.

    Args:
        by_class: The objects by class, in the order of the task's `involved_classes`.
        owner: Begins the objects' names in evaluated text, which the package makes of the model's name and the task.
    """

    def __init__(self, by_class: Mapping[str, Any], owner: str) -> None:
        self.by_class = by_class
        self._by_name = {f"{owner}_{class_name}_instance": found for class_name, found in by_class.items()}
        self._instance_of = {
            method: name
            for name, found in self._by_name.items()
            for method, _ in inspect.getmembers(found, predicate=inspect.ismethod)
            if not method.startswith("_")
        }

    def execute(self, text: str) -> str:
        """Execute the text of a call and return the result as the package writes it; errors are results, too."""
        try:
            with package.unchanged_globals():
                return _as_text(self._result(text))
        except Exception as error:  # the package's boundary: whatever a method raises is its result
            return f"{FAILED}{error}"

    def _result(self, text: str) -> Any:
        call = parse(package.with_instance_names(text, self._instance_of))
        if isinstance(call.func, ast.Name):
            raise NameError(f"name {call.func.id!r} is not defined")
        assert isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name)
        method = getattr(self._by_name[call.func.value.id], call.func.attr)
        positional, named = literals(call)
        package.check_work(call.func.attr, bound(method, positional, named))
        return method(*positional, **named)


def written(name: str, arguments: Mapping[str, Any]) -> str:
    """A call as text, as the leaderboard's handlers write what a model called (`convert_to_function_call`)."""
    return f"{name}({','.join(f'{key}={value!r}' for key, value in arguments.items())})"


def parse(text: str) -> ast.Call:
    """Parse the text of a call.

    Raises:
        SyntaxError: It is not a Python expression; the message is that of `eval`.
        ValueError: It is anything but one call of a function or of an object's method.
    """
    body = cast("ast.Expression", compile(text, "<string>", "eval", ast.PyCF_ONLY_AST)).body
    if isinstance(body, ast.Call):
        function = body.func
        if isinstance(function, ast.Name):
            return body
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
            return body
    raise ValueError("expected one function call")


def read(text: str) -> tuple[str, list[Any], dict[str, Any]]:
    """Function, positional and named arguments of a call of the ground truth."""
    call = parse(text)
    assert isinstance(call.func, ast.Name)
    return call.func.id, *literals(call)


def literals(call: ast.Call) -> tuple[list[Any], dict[str, Any]]:
    """The positional and named arguments. Raises ValueError if one is not a literal."""
    named = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords if keyword.arg is not None}
    if len(named) < len(call.keywords):
        raise ValueError("expected named arguments")
    return [ast.literal_eval(argument) for argument in call.args], named


def bound(method: Any, positional: list[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """All arguments by name, as far as the method's signature takes them."""
    try:
        return dict(inspect.signature(method).bind_partial(*positional, **named).arguments)
    except TypeError:
        return dict(named)


def _as_text(result: Any) -> str:
    if type(result) is str:
        return result
    value: object = result
    try:
        return json.dumps(value) if type(result) is dict else str(value)
    except (TypeError, ValueError, RecursionError):  # as the package: what JSON refuses is written by `str`
        return str(value)
