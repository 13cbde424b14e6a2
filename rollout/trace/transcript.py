"""A trajectory as lines of text: search in them, and differences between two trajectories."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator

from gateway.errors import ConfigError
from rollout.trace.record import Trace
from rollout.types import shared_beginning

Line = tuple[int, str, str]
"""Turn from 0 (-1 for the prompt), kind of text, and one line of it."""


def lines_of(trace: Trace) -> Iterator[Line]:
    """Every text of the trajectory in order, line by line; results whole."""
    for message in trace.messages[: max(0, trace.opening)]:
        yield from _lines(-1, str(message["role"]), str(message["content"]))
    for number, turn in enumerate(trace.turns):
        yield from _lines(number, "thinking", turn.thinking)
        yield from _lines(number, "assistant", turn.content)
        for event in turn.tools:
            yield number, "call", f"{event.name} {json.dumps(event.arguments, ensure_ascii=False)}"
            yield from _lines(number, "error" if event.is_error else "result", event.text)
        if turn.user is not None:
            yield from _lines(number, "user", turn.user.message)
    if trace.failure is not None:
        yield from _lines(len(trace.turns) - 1, "failure", f"{trace.failure.kind}: {trace.failure.message}")


def searched(trace: Trace, pattern: str, *, ignore_case: bool = False) -> Iterator[Line]:
    """The lines of the trajectory that match a regular expression.

    Raises:
        ConfigError: it is no regular expression.
    """
    try:
        expression = re.compile(pattern, re.IGNORECASE if ignore_case else 0)
    except re.error as error:
        raise ConfigError(f"is no regular expression: {error}", key="PATTERN") from error
    return (line for line in lines_of(trace) if expression.search(line[2]))


def difference(one: Trace, other: Trace) -> Iterator[str]:
    """Outcomes, the number of shared ids, and a unified diff of the conversations, whose hunks begin with `@@`."""
    for mark, trace in (("---", one), ("+++", other)):
        origin, score = trace.origin, "none" if trace.reward is None else f"{trace.reward.score:.3f}"
        where = f"row {origin.row} sample {origin.sample}" + (f" step {origin.step}" if origin.step >= 0 else "")
        task = f"{trace.task.environment}/{trace.task.task}"
        yield f"{mark} {trace.id}  {task} {where} reward {score} {trace.stop_reason}"
    shared = shared_beginning(one.context, other.context)
    yield f"the first {shared} of {len(one.context)} and {len(other.context)} ids are the same"
    before, after = ([f"{kind}: {line}" for _, kind, line in lines_of(trace)] for trace in (one, other))
    yield from list(difflib.unified_diff(before, after, lineterm=""))[2:]


def _lines(turn: int, kind: str, text: str) -> Iterator[Line]:
    for line in text.splitlines():
        yield turn, kind, line
