"""Detect changes that a policy made to the context it was lent, or an agent to its trace."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from rollout.errors import AgentTampered, EngineError
from rollout.process import exempt
from rollout.trace.record import Segment, Trace


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


class Seal:
    """Compares the trace that an agent gives back with the one that it was given.

    An agent has no reference to the trace. It runs in this process, though, where Python code can reach anything: this
    turns an edit into a withdrawn trajectory. It costs a pass over the trace for each method that the agent calls.
    """

    def __init__(self) -> None:
        self._taken: Any = None

    def take(self, trace: Trace) -> None:
        """Copy what training, scoring and traces read."""
        self._taken = _read(trace)

    def check(self, trace: Trace) -> None:
        """Raises AgentTampered where the trace differs from the copy."""
        found = _read(trace)
        changed = [name for name, value in found.items() if value != self._taken[name]]
        if changed:
            raise AgentTampered(f"the agent changed the trace: {', '.join(changed)}")


def _read(trace: Trace) -> dict[str, Any]:
    segments = (*trace.earlier, trace)
    return {
        "identity": (trace.id, trace.task, trace.origin),
        "token ids": [(tuple(segment.prompt_ids), tuple(segment.response_ids)) for segment in segments],
        "context": tuple(trace.context),
        "loss mask": [tuple(segment.loss_mask) for segment in segments],
        "logprobs": [tuple(segment.logprobs) for segment in segments],
        "spans": [_spans(segment) for segment in segments],
        "turns": repr(trace.turns),
        "messages": repr(trace.messages),
        "outcome": (trace.stop_reason, repr(trace.failure), repr(trace.reward)),
    }


def _spans(segment: Segment) -> tuple[tuple[str, int, int, int], ...]:
    return tuple((span.kind, span.turn, span.start, span.end) for span in segment.spans)
