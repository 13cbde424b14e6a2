"""The data of the viewer's pages as JSON values."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.rollout.trace.entries import COLUMNS, Entry
from mcp_rollout.rollout.viewer.conversation import conversation
from mcp_rollout.rollout.viewer.directory import Directory
from mcp_rollout.rollout.viewer.filters import SPLITS
from mcp_rollout.rollout.viewer.series import series
from mcp_rollout.rollout.viewer.siblings import advantage, compared, same_task, siblings_of
from mcp_rollout.rollout.viewer.token_view import tokens_view

PAGE_SIZE = 100
LISTED = (
    *("id", "environment", "task", "step", "validate", "row", "sample", "attempt", "uid", "reward", "turns"),
    *("tool_calls", "tool_errors", "sampled_tokens", "thinking_tokens", "response_tokens", "stop_reason", "failure"),
    *("withdrawn", "marks", "calls", "errors", "elapsed_s", "text"),
)
"""Columns of the list."""


class Pages(Directory):
    """Reads what the page shows from a directory of traces. For one thread."""

    def state(self, given: Mapping[str, str]) -> dict[str, Any]:
        """What there is: the directory's name, and the runs, environments and number of the trajectories."""
        where, runs = self.where(given), self.runs
        source = f"FROM trajectories {f'WHERE {where}' if where else ''}"
        rows = self.traces.query(
            f"""SELECT environment, count(*) AS count, max(step) AS last_step, sum(withdrawn) AS withdrawn,
            sum({SPLITS["held-out"]}) AS held_out, sum({SPLITS["train"]}) AS trained {source} GROUP BY 1"""
        )
        found: list[dict[str, Any]] = [dict(row) for row in rows]
        own = {runs.name_of(row["file"]) for row in self.traces.query(f"SELECT DISTINCT file {source}")}
        return {
            "directory": self.traces.directory.resolve().name,
            "last_step": max((row["last_step"] for row in found if row["last_step"] is not None), default=None),
            "environments": [row["environment"] for row in found],
            "runs": [name for name in runs.names if name in own],
        } | {name: sum(row[name] for row in found) for name in ("count", "withdrawn", "held_out", "trained")}

    def series(self, given: Mapping[str, str]) -> list[dict[str, Any]]:
        """Means by step for each run."""
        return series(self.runs, self.where(given))

    def list(self, given: Mapping[str, str]) -> dict[str, Any]:
        """A page of the list: `sort` is a column, with - before it for descending; `page` counts from 0."""
        where, runs = self.where(given), self.runs
        page = _whole(given.get("page", "0"), "page")
        sort = [name for name in given.get("sort", "").split(",") if name]
        rows = self.traces.entries(where=where, sort=sort, columns=LISTED, limit=PAGE_SIZE, offset=page * PAGE_SIZE)
        return {
            "total": self.traces.count(where),
            "page": page,
            "size": PAGE_SIZE,
            "rows": [{name: entry[name] for name in LISTED} | {"in": runs.name_of(entry["file"])} for entry in rows],
        }

    def trajectory(self, identity: str) -> dict[str, Any]:
        """A trajectory without its tokens, with its siblings and the same task in other steps."""
        entry = self.entry(identity)
        trace = self.traces.read(entry)
        group = siblings_of(self.runs, entry)
        trained = self.trained(entry, [each["id"] for each in group])
        own = trained.get(identity, [])
        return {
            "entry": {name: entry[name] for name in COLUMNS} | {"in": self.runs.name_of(entry["file"])},
            "trace": conversation(trace, unit=self.unit(trace)),
            "group": [_brief(each) | {"advantage": advantage(trained.get(each["id"], ()))} for each in group],
            "same_task": [_brief(each) for each in same_task(self.traces, entry)],
            "trained": {"step": own[-1].step, "dropped": own[-1].dropped} if own else None,
        }

    def tokens(self, identity: str) -> dict[str, Any]:
        """The tokens of a trajectory, and what a trainer computed on them."""
        entry = self.entry(identity)
        trace = self.traces.read(entry)
        trained = self.trained(entry, [identity])
        return tokens_view(trace, self.texts(trace), trained.get(identity, ()), unit=self.unit(trace))

    def siblings(self, identity: str) -> dict[str, Any]:
        """The conversations of the trajectory's group, for comparison."""
        group = siblings_of(self.runs, self.entry(identity))
        return compared([self.traces.read(each) for each in group])


def to_json(value: Any) -> bytes:
    """A value as JSON that every browser parses: ASCII, and null for numbers that JSON does not have."""
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    except ValueError:
        return json.dumps(_finite(value), separators=(",", ":")).encode()


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in cast("dict[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in cast("Sequence[Any]", value)]
    return value


def _brief(entry: Entry) -> dict[str, Any]:
    return {name: value for name, value in entry.items() if name not in ("file", "place", "run")}


def _whole(text: str, key: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise ConfigError(f"is not a number: {text[:40]!r}", key=key)
    return int(text)
