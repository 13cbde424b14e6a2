"""The data of the viewer's pages as JSON values, the same for the server and for an export."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from gateway.errors import ConfigError
from rollout.trace.entries import COLUMNS, Entry
from rollout.trace.reader import Traces
from rollout.trace.record import Trace
from rollout.trace.run_record import RunRecord, TokenIds, read_run_records
from rollout.trace.trained import TrainedSegment
from rollout.viewer.conversation import conversation
from rollout.viewer.filters import SPLITS, condition, quoted
from rollout.viewer.runs import Runs, series
from rollout.viewer.siblings import advantage, compared, same_task, siblings_of, trained_of
from rollout.viewer.token_texts import TokenTexts, token_texts
from rollout.viewer.token_view import tokens_view

PAGE_SIZE = 100
LISTED = (
    *("id", "environment", "task", "step", "validate", "row", "sample", "attempt", "uid", "reward", "turns"),
    *("tool_calls", "tool_errors", "sampled_tokens", "thinking_tokens", "response_tokens", "stop_reason", "failure"),
    *("withdrawn", "marks", "calls", "errors", "elapsed_s", "text"),
)
"""Columns of the list."""


class Pages:
    """Reads what the page shows from a directory of traces. For one thread.

    Args:
        traces: the directory, opened.
        tokenizer: of a model, in place of those that run records name.
    """

    def __init__(self, traces: Traces, tokenizer: Path | None = None) -> None:
        self.traces = traces
        self._tokenizer = tokenizer
        self._texts: dict[str, TokenTexts] = {}
        self._records: dict[str, RunRecord] = {}

    @property
    def runs(self) -> Runs:
        """The runs that there are now."""
        return Runs(self.traces)

    def version(self) -> int:
        """A number that changes with the index."""
        (row,) = self.traces.query("PRAGMA data_version")
        return int(row[0])

    def state(self) -> dict[str, Any]:
        """What there is: the directory's name, its runs, environments and number of trajectories."""
        rows = self.traces.query(
            f"""SELECT environment, count(*) AS count, max(step) AS last_step, sum(withdrawn) AS withdrawn,
            sum({SPLITS["held-out"]}) AS held_out, sum({SPLITS["train"]}) AS trained FROM trajectories GROUP BY 1"""
        )
        found: list[dict[str, Any]] = [dict(row) for row in rows]
        return {
            "directory": self.traces.directory.resolve().name,
            "last_step": max((row["last_step"] for row in found if row["last_step"] is not None), default=None),
            "environments": [row["environment"] for row in found],
            "runs": self.runs.names,
        } | {name: sum(row[name] for row in found) for name in ("count", "withdrawn", "held_out", "trained")}

    def where(self, given: Mapping[str, str]) -> str | None:
        """The condition of the filters in an address. Raises ConfigError as `rollout.viewer.filters.condition`."""
        parts = [condition(given), self.runs.condition(given["runs"]) if given.get("runs") else None]
        return " AND ".join(part for part in parts if part) or None

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

    def entry(self, identity: str) -> Entry:
        """The entry of a trajectory. Raises ConfigError: there is none."""
        found = next(self.traces.entries(where=f"id = {quoted(identity)}", limit=1), None)
        if found is None:
            raise ConfigError("there is no such trajectory", key=identity)
        return found

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

    def trained(self, entry: Entry, ids: Sequence[str]) -> dict[str, list[TrainedSegment]]:
        """What a trainer computed on trajectories of the entry's step and run, by id; empty for held-out ones."""
        if entry["validate"] or entry["step"] is None:
            return {}
        return trained_of(self.traces.home_of(entry), ids, entry["step"], self.traces.skipped)

    def record(self, trace: Trace) -> RunRecord | None:
        """The run record of a trajectory; None where it is missing."""
        if trace.run not in self._records:
            self._records = read_run_records(self.traces.directory, skipped=self.traces.skipped)
        return self._records.get(trace.run)

    def unit(self, trace: Trace) -> str:
        """What the ids of a trajectory stand for: `tokens`, or `bytes` where the policy gave text only."""
        record = self.record(trace)
        return "bytes" if record is not None and record.token_ids is TokenIds.BYTES else "tokens"

    def prompt_limits(self) -> dict[str, int]:
        """The longest prompt that a training allows, by run record."""
        self._records = read_run_records(self.traces.directory, skipped=self.traces.skipped)
        limits = {name: record.sampling.get("prompt_length") for name, record in self._records.items()}
        return {name: limit for name, limit in limits.items() if isinstance(limit, int)}

    def texts(self, trace: Trace) -> TokenTexts:
        """The texts of the trajectory's tokens."""
        if trace.run not in self._texts:
            self._texts[trace.run] = token_texts(self.record(trace), self._tokenizer)
        return self._texts[trace.run]


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
