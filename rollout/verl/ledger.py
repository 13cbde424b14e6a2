"""How a batch went, collected from all workers: what verl logs as `mcp/*` and what stops a failing run."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import ray

from gateway.errors import LockMismatch
from rollout.trace.drift import CallSeen, Drift, calls_seen, drifts, siblings
from rollout.trace.events import MarkKind
from rollout.trace.record import Trace

NAME = "mcp_rollout_ledger"
TOOLS_CHANGED = LockMismatch.code


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One finished trajectory."""

    validate: bool
    turns: int = 0
    tool_calls: int = 0
    tool_errors: int = 0
    lease_wait_s: float = 0.0
    reward_parts: dict[str, float] = field(default_factory=dict[str, float])
    """By `ENVIRONMENT/PART`; empty where the trajectory was withdrawn."""
    failure: str | None = None
    """`kind: message` where the trajectory was withdrawn."""
    penalty: float = 0.0
    is_in_loss: bool = False
    """Whether a token of it is in the loss: filters may have masked all of them."""
    marks: dict[str, int] = field(default_factory=dict[str, int])
    """Turns by what they were marked with."""
    group: Hashable = None
    """The same for the siblings of a row."""
    calls: tuple[CallSeen, ...] = ()
    tools_changed: str | None = None
    """How a server's tools differ from what the run began with, where that is why."""

    @classmethod
    def of(cls, trace: Trace) -> Entry:
        ended = f"{trace.stop_reason} before the first token" if not trace.segments else str(trace.stop_reason)
        reason = f"{trace.failure.kind}: {trace.failure.message}" if trace.failure else ended
        parts = trace.reward.parts if trace.reward and not trace.is_withdrawn else {}
        return cls(
            validate=trace.origin.validate_,
            turns=len(trace.turns),
            tool_calls=trace.tool_calls,
            tool_errors=trace.tool_errors,
            lease_wait_s=trace.lease_wait_s,
            reward_parts={f"{trace.task.environment}/{part}": value for part, value in parts.items()},
            failure=reason if trace.is_withdrawn else None,
            penalty=trace.reward.penalty if trace.reward and not trace.is_withdrawn else 0.0,
            is_in_loss=not trace.is_withdrawn and any(segment.is_in_loss for segment in trace.segments),
            marks=dict(Counter(kind for turn in trace.turns for kind in {str(mark.kind) for mark in turn.marks})),
            group=siblings(trace),
            calls=calls_seen(trace),
            tools_changed=trace.failure.message if trace.failure and trace.failure.kind == TOOLS_CHANGED else None,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """A batch of entries."""

    trajectories: int
    turns: int
    tool_calls: int
    tool_errors: int
    lease_wait_s: float
    reward_parts: dict[str, float]
    """Means over the trajectories that have the part."""
    failures: dict[str, int]
    penalty: float = 0.0
    in_loss: int = 0
    """Trajectories that have a token in the loss."""
    marks: dict[str, int] = field(default_factory=dict[str, int])
    """MarkedWriteStream turns, by kind."""
    drifts: tuple[Drift, ...] = ()
    """Calls that got different results in sibling trajectories."""
    tools_changed: tuple[str, ...] = ()
    """Each difference once, in the order of their coming."""

    @property
    def failed_share(self) -> float:
        return sum(self.failures.values()) / self.trajectories if self.trajectories else 0.0

    def metrics(self) -> dict[str, float]:
        """What verl's loggers get."""
        played = max(self.trajectories, 1)
        return {
            "mcp/trajectories": float(self.trajectories),
            "mcp/turns": self.turns / played,
            "mcp/tool_calls": self.tool_calls / played,
            "mcp/tool_error_rate": self.tool_errors / max(self.tool_calls, 1),
            "mcp/lease_wait_s": self.lease_wait_s / played,
            "mcp/failed_share": self.failed_share,
            "mcp/penalty": self.penalty / played,
            "mcp/drifted_calls": float(len(self.drifts)),
            **{f"mcp/marks/{kind}": self.marks.get(kind, 0) / played for kind in MarkKind},
            **{f"mcp/reward/{part}": value for part, value in self.reward_parts.items()},
        }


def summarise(entries: list[Entry]) -> Summary:
    return Summary(
        trajectories=len(entries),
        turns=sum(entry.turns for entry in entries),
        tool_calls=sum(entry.tool_calls for entry in entries),
        tool_errors=sum(entry.tool_errors for entry in entries),
        lease_wait_s=sum(entry.lease_wait_s for entry in entries),
        reward_parts=_means([entry.reward_parts for entry in entries]),
        penalty=sum(entry.penalty for entry in entries),
        in_loss=sum(entry.is_in_loss for entry in entries),
        marks=dict(sum((Counter(entry.marks) for entry in entries), Counter[str]())),
        drifts=tuple(drifts((entry.group, entry.calls) for entry in entries)),
        failures=dict(Counter(entry.failure for entry in entries if entry.failure is not None)),
        tools_changed=tuple(dict.fromkeys(entry.tools_changed for entry in entries if entry.tools_changed)),
    )


def _means(parts: Iterable[dict[str, float]]) -> dict[str, float]:
    """The mean of every name over the mappings that have it, in alphabetical order."""
    values: defaultdict[str, list[float]] = defaultdict(list)
    for own in parts:
        for name, value in own.items():
            values[name].append(value)
    return {name: fmean(values[name]) for name in sorted(values)}


class Ledger:
    """A Ray actor, one per training job, started by `MCPAgentLoopManager`."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []

    def add(self, entry: Entry) -> None:
        self._entries.append(entry)

    def drain(self, validate: bool) -> Summary:
        """Summary of the training (or validation) entries since the last call."""
        drained = [entry for entry in self._entries if entry.validate is validate]
        self._entries = [entry for entry in self._entries if entry.validate is not validate]
        return summarise(drained)


def start_ledger() -> Any:
    """Handle of the job's `Ledger`, started if there is none. Ray ends it when nobody holds a handle any more."""
    return ray.remote(Ledger).options(name=NAME, get_if_exists=True, num_cpus=0).remote()
