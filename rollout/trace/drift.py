"""Environment drift: sibling trajectories whose identical calls got different results.

Siblings begin in the same world, so the same call after the same calls should return the same result. Where it does
not, the rewards of a group compare different worlds. Fields that the server declares volatile are
left out; other results of tools that read the clock differ legitimately, so drift is reported and changes nothing.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from mcp_rollout.gateway.types import canonical_json
from mcp_rollout.rollout.trace.events import ToolEvent, stable_text
from mcp_rollout.rollout.trace.record import StopReason, Trace

_SHOWN = 120
"""Characters of arguments and results that are quoted in a report."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CallSeen:
    """One call of a trajectory, reduced to what comparing siblings needs."""

    key: str
    """Digest of all calls up to and including this turn, and the position of this call in the turn."""
    result: str
    """Digest of the whole result text, without the fields that the server declares volatile."""
    server: str
    tool: str
    arguments: str
    text: str


@dataclass(frozen=True, slots=True)
class Drift:
    """The same call in two trajectories, with different results."""

    one: CallSeen
    other: CallSeen

    def __str__(self) -> str:
        one = self.one
        return f"{one.server}/{one.tool} {one.arguments} gave {one.text!r} and {self.other.text!r}"


def calls_seen(trace: Trace) -> tuple[CallSeen, ...]:
    """The calls with comparable results: those sent to servers, without calls that the trajectory's end cut off."""
    turns = trace.turns
    # Its last calls may have been cancelled: they have no result to compare.
    if trace.stop_reason in (StopReason.TIME_LIMIT, StopReason.FAILED):
        turns = turns[:-1]
    seen: list[CallSeen] = []
    history = hashlib.sha256()
    for turn in turns:
        calls = [canonical_json([event.name, event.arguments]) for event in turn.tools]
        history.update(canonical_json(calls).encode(errors="replace"))
        for index, event in enumerate(turn.tools):
            if event.server is None or event.fault is not None:
                continue
            seen.append(
                CallSeen(
                    key=f"{history.hexdigest()}/{index}",
                    result=_digest(event),
                    server=event.server,
                    tool=event.name,
                    arguments=_short(canonical_json(event.arguments)),
                    text=_short(event.text),
                )
            )
    return tuple(seen)


def _digest(event: ToolEvent) -> str:
    stable = canonical_json(stable_text(event.text, event.volatile))
    return hashlib.sha256(stable.encode(errors="replace")).hexdigest()


def siblings(trace: Trace) -> Hashable:
    """A key that is equal for the trajectories of one group: the trainer's uid, else the row of the run."""
    origin = trace.origin
    return origin.uid or (origin.engine, trace.task.environment, trace.task.task, trace.task.seed, origin.row)


def drifts(trajectories: Iterable[tuple[Hashable, Sequence[CallSeen]]]) -> list[Drift]:
    """Find the calls with more than one result within a group; each is reported once, in the order of the calls.

    Args:
        trajectories: group and calls of each trajectory.
    """
    found: defaultdict[tuple[Hashable, str], dict[str, CallSeen]] = defaultdict(dict)
    for group, calls in trajectories:
        for call in calls:
            found[group, call.key].setdefault(call.result, call)
    return [Drift(*list(results.values())[:2]) for results in found.values() if len(results) > 1]


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
