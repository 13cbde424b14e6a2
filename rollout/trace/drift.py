"""Environment drift: sibling trajectories whose identical calls got different results.

Siblings begin in the same world, so a call with the same arguments after the same calls should find the same. Where it
does not, rewards of one group compare different worlds. Tools that depend on the time differ rightly, so this only
reports.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from gateway.types import canonical_json
from rollout.trace.record import StopReason, Trace

_SHOWN = 120
"""Characters of arguments and results that a report quotes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CallSeen:
    """One call of a trajectory, small enough to be sent to whoever compares siblings."""

    key: str
    """Digest of the calls before this turn, this turn's calls and which of them this is."""
    result: str
    """Digest of the whole text."""
    server: str
    tool: str
    arguments: str
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Drift:
    """One call and two of its results."""

    server: str
    tool: str
    arguments: str
    results: tuple[str, str]

    def __str__(self) -> str:
        one, another = self.results
        return f"{self.server}/{self.tool} {self.arguments} gave {one!r} and {another!r}"


def calls_seen(trace: Trace) -> tuple[CallSeen, ...]:
    """The calls whose results are comparable: those of servers, less the ones that the trajectory's end cut short."""
    turns = trace.turns
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
                    result=hashlib.sha256(event.text.encode(errors="replace")).hexdigest(),
                    server=event.server,
                    tool=event.name,
                    arguments=_short(canonical_json(event.arguments)),
                    text=_short(event.text),
                )
            )
    return tuple(seen)


def siblings(trace: Trace) -> Hashable:
    """What is the same for the trajectories of one group: the trainer's uid, else the row of the run."""
    origin = trace.origin
    return origin.uid or (origin.engine, trace.task.environment, trace.task.task, trace.task.seed, origin.row)


def drifts(trajectories: Iterable[tuple[Hashable, Sequence[CallSeen]]]) -> list[Drift]:
    """Each call of a group that got more than one result, once, in the order of their coming.

    Args:
        trajectories: each one's group and calls.
    """
    found: defaultdict[tuple[Hashable, str], dict[str, CallSeen]] = defaultdict(dict)
    for group, calls in trajectories:
        for call in calls:
            found[group, call.key].setdefault(call.result, call)
    reports: list[Drift] = []
    for results in found.values():
        if len(results) > 1:
            first, second = list(results.values())[:2]
            reports.append(
                Drift(
                    server=first.server,
                    tool=first.tool,
                    arguments=first.arguments,
                    results=(first.text, second.text),
                )
            )
    return reports


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
