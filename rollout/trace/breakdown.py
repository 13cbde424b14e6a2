"""Statistics by environment, task, tool or any other column of the index."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.errors import ConfigError
from rollout.trace.entries import COLUMNS, Entry

TOOL = "tool"
"""A key beside the columns: every tool that a trajectory called."""


@dataclass(kw_only=True, slots=True)
class Group:
    """The trajectories with the same values; those of one tool, where `tool` is a key, and the calls of that tool."""

    trajectories: int = 0
    withdrawn: int = 0
    """Withdrawn trajectories, which the other figures leave out."""
    rewards: list[float] = field(default_factory=lambda: [0.0, 0.0])  # sum and number
    turns: int = 0
    calls: int = 0
    errors: int = 0
    seconds: float = 0.0
    """Of the tool's calls where `tool` is a key, else of the trajectories."""

    def row(self) -> dict[str, Any]:
        """Means and rates."""
        played = self.trajectories - self.withdrawn
        return {
            "trajectories": self.trajectories,
            "withdrawn": self.withdrawn,
            "reward": self.rewards[0] / self.rewards[1] if self.rewards[1] else None,
            "turns": self.turns / played if played else None,
            "calls": self.calls,
            "error_rate": self.errors / self.calls if self.calls else None,
            "seconds": self.seconds,
        }


def check_keys(keys: Sequence[str]) -> list[str]:
    """The columns that the keys need. Raises ConfigError: there is no such key."""
    for key in keys:
        if key != TOOL and key not in COLUMNS:
            raise ConfigError(
                f"there is no column {key!r}", key="--by", remedy=f"{TOOL}, or one of {', '.join(COLUMNS)}"
            )
    needed = ["withdrawn", "reward", "turns", "tool_calls", "tool_errors", "elapsed_s", "calls", "errors", "call_s"]
    return [*needed, *(key for key in keys if key != TOOL and key not in needed)]


def break_down(entries: Iterable[Entry], keys: Sequence[str]) -> list[dict[str, Any]]:
    """A row of means for each combination of the keys' values, sorted by them; memory grows with their number only."""
    groups: defaultdict[tuple[Any, ...], Group] = defaultdict(Group)
    for entry in entries:
        for tool in entry["calls"] if TOOL in keys else [None]:
            group = groups[tuple(tool if key == TOOL else entry[key] for key in keys)]
            group.trajectories += 1
            if entry["withdrawn"]:
                group.withdrawn += 1
                continue
            if entry["reward"] is not None:
                group.rewards[0] += entry["reward"]
                group.rewards[1] += 1
            group.turns += entry["turns"]
            group.calls += entry["tool_calls"] if tool is None else entry["calls"][tool]
            group.errors += entry["tool_errors"] if tool is None else entry["errors"].get(tool, 0)
            group.seconds += entry["elapsed_s"] if tool is None else entry["call_s"][tool]
    ordered = sorted(groups.items(), key=lambda each: [_place(value) for value in each[0]])
    return [dict(zip(keys, values, strict=True)) | group.row() for values, group in ordered]


def _place(value: Any) -> tuple[bool, float, str]:
    """Numbers by size, then texts, then what has no value."""
    number = float(value) if isinstance(value, int | float) else math.inf
    return value is None, number, str(value)
