"""What became of trajectories: how many of each order state earned the full reward, and how many ended badly."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from mcp_servers.retail.short_tasks import STATES, state_of
from rollout.evaluation.estimates import wilson
from rollout.trace.record import StopReason, Trace
from rollout.types import FinishReason

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

    by_state: dict[str, Served]
    total: Served
    token_limit: float
    """Share of trajectories whose last turn was cut by a token limit, of a turn or of the trajectory."""
    looping: float
    """Share of trajectories whose last turn repeats itself."""

    def record(self) -> dict[str, object]:
        """The numbers as JSON."""
        shares = {state: [served.count, served.of] for state, served in self.by_state.items()}
        total = [self.total.count, self.total.of]
        return {"by_state": shares, "total": total, "token_limit": self.token_limit, "looping": self.looping}


def summarise(traces: Sequence[Trace]) -> Outcomes:
    """Count the outcomes of trajectories of `retail_fitting` or `retail_any`.

    Raises:
        LookupError: a trace is of another environment.
    """
    groups = {state: [trace for trace in traces if state_of(trace.task.task) == state] for state in STATES}
    return Outcomes(
        by_state={state: _served(group) for state, group in groups.items()},
        total=_served(traces),
        token_limit=_share([is_cut(trace) for trace in traces]),
        looping=_share([is_looping(trace) for trace in traces]),
    )


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
