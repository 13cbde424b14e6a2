"""Means of runs by step."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from mcp_rollout.rollout.viewer.directory import GROUP, Runs
from mcp_rollout.rollout.viewer.filters import TRUNCATED

_SUMS = {
    "count": "count(*)",
    "withdrawn": "sum(withdrawn)",
    "rewards": "count(reward)",
    "reward": "sum(reward)",
    "turns": "sum(turns)",
    "length": "sum(response_tokens)",
    "sampled": "sum(sampled_tokens)",
    "thinking": "sum(thinking_tokens)",
    "calls": "sum(tool_calls)",
    "errors": "sum(tool_errors)",
    "seconds": "sum(elapsed_s)",
    "queued": "sum(lease_wait_s)",
}


def series(runs: Runs, where: str | None) -> list[dict[str, Any]]:
    """Means by step for each run, environment and split; `steps` is [null] for an evaluation.

    Raises:
        ConfigError: `where` is not a condition.
    """
    sums = ", ".join(f"{expression} AS {name}" for name, expression in _SUMS.items())
    statement = f"""{runs.table} SELECT run_number, environment, validate, step, stop_reason, {sums}
        FROM {runs.source} {"WHERE " + where if where else ""} GROUP BY 1, 2, 3, 4, 5"""
    cells: defaultdict[tuple[Any, ...], defaultdict[Any, _Cell]] = defaultdict(lambda: defaultdict(_Cell))
    for row in runs.traces.query(statement):
        cells[row["run_number"], row["environment"], bool(row["validate"])][row["step"]].add(dict(row))
    spreads = _spreads(runs, where)
    return [
        {"run": runs.names[run], "environment": environment, "split": _split(validate, steps)}
        | _columns(steps, spreads.get((run, environment, validate), {}))
        for (run, environment, validate), steps in sorted(cells.items())
    ]


class _Cell:
    """Sums over the trajectories of one step."""

    def __init__(self) -> None:
        self.sums: Counter[str] = Counter()
        self.stops: Counter[str] = Counter()

    def add(self, row: dict[str, Any]) -> None:
        self.sums.update({name: row[name] or 0 for name in _SUMS})
        self.stops[row["stop_reason"]] += row["count"]

    def mean(self, name: str, over: str = "count") -> float | None:
        return self.sums[name] / self.sums[over] if self.sums[over] else None

    def values(self) -> dict[str, Any]:
        count = self.sums["count"]
        means = {name: self.mean(name) for name in ("turns", "length", "sampled", "thinking", "seconds", "queued")}
        return means | {
            "count": count,
            "withdrawn": self.sums["withdrawn"],
            "rewards": self.sums["rewards"],
            "calls": self.sums["calls"],
            "reward": self.mean("reward", "rewards"),
            "errors": self.mean("errors", "calls"),
            "truncated": sum(self.stops[reason] for reason in TRUNCATED) / count,
            "stops": dict(self.stops),
        }


def _split(validate: bool, steps: dict[Any, _Cell]) -> str:
    if validate:
        return "held-out"
    return "evaluation" if set(steps) == {None} else "train"


def _columns(steps: dict[Any, _Cell], spreads: dict[Any, tuple[float, float]]) -> dict[str, Any]:
    ordered = sorted(steps, key=lambda step: (step is not None, step))
    rows = [steps[step].values() for step in ordered]
    columns: dict[str, Any] = {"steps": ordered, **{name: [row[name] for row in rows] for name in rows[0]}}
    found = [spreads.get(step, (None, None)) for step in ordered]
    return columns | {"spread": [each[0] for each in found], "flat_groups": [each[1] for each in found]}


def _spreads(runs: Runs, where: str | None) -> dict[tuple[int, str, bool], dict[Any, tuple[float, float]]]:
    """By run, environment and split, then step: mean difference of best and worst sibling, share of groups without."""
    statement = f"""{runs.table} SELECT run_number, environment, validate, step, avg(spread), avg(spread <= 1e-9) FROM (
            SELECT run_number, environment, validate, step, max(reward) - min(reward) AS spread
            FROM {runs.source}
            WHERE reward IS NOT NULL AND NOT withdrawn {"AND " + where if where else ""}
            GROUP BY run_number, environment, validate, step, {GROUP} HAVING count(*) > 1
        ) GROUP BY 1, 2, 3, 4"""
    found: defaultdict[tuple[int, str, bool], dict[Any, tuple[float, float]]] = defaultdict(dict)
    for run, environment, validate, step, spread, flat in runs.traces.query(statement):
        found[run, environment, bool(validate)][step] = (spread, flat)
    return found
