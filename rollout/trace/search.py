"""Search in the texts of a trajectory."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gateway.errors import ConfigError
from rollout.trace.record import Trace
from rollout.trace.transcript import Line, lines_of


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
