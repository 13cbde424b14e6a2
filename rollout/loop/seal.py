"""Detect changes that an agent made to its trace."""

from __future__ import annotations

from typing import Any

from rollout.errors import AgentTampered
from rollout.trace.record import Segment, Trace


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
