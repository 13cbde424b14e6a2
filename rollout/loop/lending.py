"""A trajectory's context in the hands of its policy, without a copy."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from sys import getrefcount

from rollout.errors import EngineError
from rollout.trace.record import Trace


@contextmanager
def lent_context(trace: Trace) -> Generator[None]:
    """Within the block a policy has the trace's context itself: copies would be a good part of what a long turn costs.

    What the policy appended is removed; if it kept the list, the trace goes on with a copy. Whether it changed ids in
    place is found out later, by `check_context`.

    Raises:
        EngineError: ids were removed from the context.
    """
    context = trace.context
    length, references = len(context), getrefcount(context)
    try:
        yield
    finally:  # also when the time ran out: the trajectory ends with what it has
        removed = length - len(context)
        del context[length:]
        if getrefcount(context) > references:
            trace.unshare_context()
    if removed > 0:
        raise _changed("removed ids from")


def check_context(trace: Trace) -> None:
    """Check that the policy was given what is recorded: once for each segment, since it looks at every id.

    Raises:
        EngineError: the policy changed ids of the context in place.
    """
    if trace.context != trace.prompt_ids + trace.response_ids:
        raise _changed("changed")


def _changed(how: str) -> EngineError:
    return EngineError(f"the policy {how} the context that it was given; it has to copy the ids to change them")
