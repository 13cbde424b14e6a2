"""A trajectory's context in the hands of its policy, without a copy."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from rollout.errors import EngineError
from rollout.process import exempt
from rollout.trace.record import Trace


@contextmanager
def lent_context(trace: Trace) -> Generator[None]:
    """Within the block a policy has the trace's context itself: copies would be a good part of what a long turn costs.

    The context stays the trace's, which appends to it after the block: a policy that keeps ids keeps a copy. What the
    policy appended is removed. Whether it changed ids in place is found out later, by `check_context`.

    Raises:
        EngineError: ids were removed from the context.
    """
    context = trace.context
    length = len(context)
    try:
        yield
    finally:  # also when the time ran out: the trajectory ends with what it has
        removed = length - len(context)
        del context[length:]
    if removed > 0:
        raise _changed("removed ids from")


def check_context(trace: Trace) -> None:
    """Check that the policy was given what is recorded: once for each segment, since it looks at every id.

    From then on the trace has its own list: a thread of the policy that goes on may write into the one it was lent.

    Raises:
        EngineError: the policy changed ids of the context in place.
    """
    lent, trace.context = trace.context, trace.prompt_ids + trace.response_ids
    exempt(trace.context)
    if lent != trace.context:
        raise _changed("changed")


def _changed(how: str) -> EngineError:
    return EngineError(f"the policy {how} the context that it was given; it has to copy the ids to keep or change them")
