"""What became of trajectories: how many of each kind of task earned the full reward, and how many ended badly."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from lab.worlds.shop.short_tasks import STATES, WISHES, state_of, wish_of
from mcp_rollout.rollout.evaluation.estimates import wilson
from mcp_rollout.rollout.trace.record import StopReason, Trace
from mcp_rollout.rollout.types import FinishReason

_LOOP = re.compile(r"(.{8,120}?)\1\1", re.DOTALL)
"""A passage that is written three times in a row."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Served:
    """How many of some trajectories earned the full reward."""

    count: int
    of: int

    @property
    def share(self) -> float:
        return self.count / self.of if self.of else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% interval of the share, after Wilson."""
        return wilson(self.share, self.of)


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcomes:
    """Shares are between 0 and 1."""

    by_kind: dict[str, Served]
    """By the order's state, and the customer's wish where they name no steps."""
    total: Served
    token_limit: float
    """Share of trajectories whose last turn was cut by a token limit, of a turn or of the trajectory."""
    looping: float
    """Share of trajectories whose last turn repeats itself."""

    def record(self) -> dict[str, object]:
        """The numbers as JSON."""
        shares = {kind: [served.count, served.of] for kind, served in self.by_kind.items()}
        total = [self.total.count, self.total.of]
        return {"by_kind": shares, "total": total, "token_limit": self.token_limit, "looping": self.looping}


def summarise(traces: Sequence[Trace]) -> Outcomes:
    """Count the outcomes of trajectories of short retail tasks.

    Raises:
        LookupError: a trace is of another environment.
    """
    kinds = [kind_of(trace.task.task) for trace in traces]
    known = [*STATES, *(f"{state}, {wish}" for state in STATES for wish in WISHES)]
    groups = {kind: [each for each, own in zip(traces, kinds, strict=True) if own == kind] for kind in known}
    return Outcomes(
        by_kind={kind: _served(group) for kind, group in groups.items() if group},
        total=_served(traces),
        token_limit=_share([is_cut(trace) for trace in traces]),
        looping=_share([is_looping(trace) for trace in traces]),
    )


def kind_of(task: str) -> str:
    """The state of a task's order, and what its customer wants if they name no steps.

    Raises:
        LookupError: it is not a short task.
    """
    wish = wish_of(task)
    return f"{state_of(task)}, {wish}" if wish else state_of(task)


def is_cut(trace: Trace) -> bool:
    """Whether a token limit ended the trajectory, or its last turn."""
    cut = bool(trace.turns) and trace.turns[-1].finish_reason is FinishReason.LENGTH
    return cut or trace.stop_reason is StopReason.TOKEN_LIMIT


def is_looping(trace: Trace) -> bool:
    """Whether the last turn contains a passage of eight characters or more three times in a row."""
    last = trace.turns[-1] if trace.turns else None
    return last is not None and _LOOP.search(f"{last.thinking}\n{last.content}") is not None


def _served(traces: Sequence[Trace]) -> Served:
    full = sum(trace.reward is not None and trace.reward.score > 0.999 for trace in traces)
    return Served(count=full, of=len(traces))


def _share(flags: Sequence[bool]) -> float:
    return sum(flags) / len(flags) if flags else 0.0
