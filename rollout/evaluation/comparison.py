"""Comparison of two runs over the rows that both have: paired differences with their uncertainty, and their costs.

Rows are the independent units. Samples of a row are averaged first, so a row counts once whatever its samples.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from mcp_rollout.rollout.evaluation.estimates import Z_95
from mcp_rollout.rollout.trace.entries import Entry
from mcp_rollout.rollout.trace.outcome import ROUNDING

FEWEST_ROWS = 5
"""With fewer rows there is no interval."""

RowKey = tuple[str, str, str]
"""Environment, task and seed of a row."""
COLUMNS = (
    "environment",
    "task",
    "seed",
    "reward",
    "withdrawn",
    "turns",
    "tool_calls",
    "sampled_tokens",
    "run",
    "split",
)
"""Columns of the index that a comparison reads."""
COSTS = ("turns", "tool_calls", "sampled_tokens")


@dataclass(kw_only=True, slots=True)
class Row:
    """The trajectories of a row in one run; withdrawn ones are left out."""

    rewards: list[float] = field(default_factory=list[float])
    costs: dict[str, list[int]] = field(default_factory=lambda: {name: [] for name in COSTS})

    def success(self, success_at: float) -> float:
        """The share of trajectories that succeed."""
        return fmean(reward >= success_at - ROUNDING for reward in self.rewards)


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """B minus A, averaged over the rows of both."""

    a: float
    b: float
    difference: float
    low: float | None
    high: float | None
    """95% interval of the difference, see `_interval`; None with fewer than `FEWEST_ROWS` rows or where no row differs.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class Flip:
    """A row whose success changed by at least half of its trajectories."""

    task: str
    seed: str
    a: float
    b: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Of one environment."""

    environment: str
    rows: int
    """Rows with trajectories in both runs."""
    only_a: int
    only_b: int
    trajectories_a: int
    trajectories_b: int
    reward: Difference
    success: Difference
    costs: dict[str, Difference]
    """By `turns`, `tool_calls` and `sampled_tokens`, each per trajectory; those that were compared."""
    gained: list[Flip]
    lost: list[Flip]


def rows_of(entries: Iterable[Entry]) -> dict[RowKey, Row]:
    """The rows of a run, with the trajectories that have a reward."""
    rows: dict[RowKey, Row] = {}
    for entry in entries:
        if entry["withdrawn"] or entry["reward"] is None:
            continue
        row = rows.setdefault((entry["environment"], entry["task"], str(entry["seed"])), Row())
        row.rewards.append(entry["reward"])
        for name in COSTS:
            row.costs[name].append(entry[name])
    return rows


def compare(
    a: dict[RowKey, Row], b: dict[RowKey, Row], *, success_at: float = 1.0, costs: Sequence[str] = COSTS
) -> list[Comparison]:
    """Compare two runs in every environment in which they share rows.

    Args:
        a: the first run's rows, which the differences are from.
        b: the second run's.
        success_at: the least reward that counts as a success.
        costs: those of `COSTS` that mean the same in both.
    """
    environments = dict.fromkeys(environment for environment, _, _ in a)
    found = (_compared(name, _rows_in(a, name), _rows_in(b, name), success_at, costs) for name in environments)
    return [comparison for comparison in found if comparison is not None]


def _rows_in(rows: dict[RowKey, Row], environment: str) -> dict[RowKey, Row]:
    return {key: row for key, row in rows.items() if key[0] == environment}


def _compared(
    environment: str, a: dict[RowKey, Row], b: dict[RowKey, Row], success_at: float, costs: Sequence[str]
) -> Comparison | None:
    shared = sorted(a.keys() & b.keys())
    if not shared:
        return None
    before, after = [a[key] for key in shared], [b[key] for key in shared]
    success = [[row.success(success_at) for row in rows] for rows in (before, after)]
    flips = [
        Flip(task=task, seed=seed, a=was, b=now)
        for (_, task, seed), was, now in zip(shared, *success, strict=True)
        if abs(now - was) >= 0.5
    ]
    return Comparison(
        environment=environment,
        rows=len(shared),
        only_a=len(a) - len(shared),
        only_b=len(b) - len(shared),
        trajectories_a=sum(len(row.rewards) for row in before),
        trajectories_b=sum(len(row.rewards) for row in after),
        reward=paired([fmean(row.rewards) for row in before], [fmean(row.rewards) for row in after]),
        success=paired(*success, most=1.0),
        costs={
            name: paired([fmean(row.costs[name]) for row in before], [fmean(row.costs[name]) for row in after])
            for name in costs
        },
        gained=[flip for flip in flips if flip.b > flip.a],
        lost=[flip for flip in flips if flip.b < flip.a],
    )


def paired(a: Sequence[float], b: Sequence[float], *, most: float = math.inf) -> Difference:
    """The mean difference of paired values.

    Args:
        a: a value for each row.
        b: the same of the other run.
        most: the largest difference that there can be.

    Raises:
        ValueError: there are no values, or unequal numbers of them.
    """
    differences = [_difference(before, after) for before, after in zip(a, b, strict=True)]
    low, high = _interval(differences, most) or (None, None)
    return Difference(a=fmean(a), b=fmean(b), difference=fmean(differences), low=low, high=high)


def _difference(before: float, after: float) -> float:
    """Means of other numbers of samples differ by rounding."""
    difference = after - before
    return difference if abs(difference) > ROUNDING * max(1.0, abs(before), abs(after)) else 0.0


def _interval(differences: Sequence[float], most: float) -> tuple[float, float] | None:
    """Student's interval, with twice the square of the largest difference added to their squared deviations.

    Without that it is a point where all of a few rows differ by the same, and misses the mean where few rows have none
    of a long tail (Student's own holds the mean of costs like lognormal ones in 87% of samples of 5 rows). Where no row
    differs, they say nothing of how large a difference is.
    """
    rows, largest = len(differences), max(map(abs, differences))
    if rows < FEWEST_ROWS or not largest:
        return None
    mean = fmean(differences)
    squares = math.fsum((difference - mean) ** 2 for difference in differences) + 2 * largest * largest
    half = _t_95(rows - 1) * math.sqrt(squares / (rows * (rows - 1)))
    return max(mean - half, -most), min(mean + half, most)


def _t_95(freedom: int) -> float:
    """Quantile of Student's t that bounds its middle 95%, from 4 degrees of freedom on to 0.3% (Fisher and Cornish)."""
    z = Z_95
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / freedom**power for power, term in enumerate(terms, 1))
