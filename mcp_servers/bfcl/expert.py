"""The ground truth as a policy: all calls of a user turn in one step, then a message that ends the turn."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from mcp_servers.bfcl import package
from mcp_servers.bfcl.calls import read
from mcp_servers.bfcl.documents import Function
from mcp_servers.bfcl.tasks import Task
from mcp_servers.kit import Call, ExpertTurn


def play(task: Task, functions: dict[str, Function]) -> Iterator[ExpertTurn]:
    for calls in task.ground_truth:
        if calls:
            yield ExpertTurn(calls=[_call(text, functions) for text in calls])
        yield ExpertTurn(content="Done." if calls else "This cannot be done with what is known and available so far.")


def _call(text: str, functions: dict[str, Function]) -> Call:
    """A call of the ground truth with its positional arguments named by the method's signature."""
    name, positional, named = read(text)
    method: Any = getattr(package.api_class(functions[name].class_name), name)
    parameters = list(inspect.signature(method).parameters)[1 : len(positional) + 1]  # the first is `self`
    return Call(name=name, arguments={**dict(zip(parameters, positional, strict=True)), **named})
