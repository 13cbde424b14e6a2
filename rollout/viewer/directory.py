"""A directory of traces with what is beside them: runs, run records, what trainers computed, the texts of tokens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.rollout.extras import parquet_needed
from mcp_rollout.rollout.trace.entries import Entry
from mcp_rollout.rollout.trace.files import Skipped
from mcp_rollout.rollout.trace.reader import Traces
from mcp_rollout.rollout.trace.record import Trace
from mcp_rollout.rollout.trace.run_record import RunRecord, TokenIds, read_run_records
from mcp_rollout.rollout.trace.trained_segment import TrainedSegment, trained_files
from mcp_rollout.rollout.viewer.filters import condition, quoted
from mcp_rollout.rollout.viewer.token_view import TokenTexts, token_texts

GROUP = "CASE uid WHEN '' THEN task || ' ' || seed || ' ' || row ELSE uid END"
"""An SQL expression that is equal for the siblings of one run, environment and step."""


@dataclass(frozen=True)
class Runs:
    """The runs of a directory: a run is what one directory's files hold."""

    traces: Traces

    @cached_property
    def _files(self) -> dict[str, list[int]]:
        found: defaultdict[str, list[int]] = defaultdict(list)
        for row in self.traces.query("SELECT id, path FROM files ORDER BY path"):
            found[str(PurePosixPath(row["path"]).parent)].append(row["id"])
        return dict(found)

    @property
    def names(self) -> list[str]:
        """Directories relative to the opened one, `.` for itself."""
        return list(self._files)

    def name_of(self, file: int) -> str:
        return next((name for name, files in self._files.items() if file in files), ".")

    def condition(self, names: str) -> str:
        """The condition for trajectories of these runs, comma-separated."""
        files = [str(file) for name in names.split(",") for file in self._files.get(name, ())]
        return f"file IN ({', '.join(files)})"

    @property
    def source(self) -> str:
        """A table expression with the trajectories and their `run_number`, an index into `names`; `table` goes before.

        A directory with one run needs no join.
        """
        return (
            "trajectories JOIN runs USING (file)" if len(self._files) > 1 else "trajectories, (SELECT 0 AS run_number)"
        )

    @property
    def table(self) -> str:
        """A common table expression `runs(file, run_number)`."""
        rows = [f"({file}, {number})" for number, files in enumerate(self._files.values()) for file in files]
        return f"WITH runs(file, run_number) AS (VALUES {', '.join(rows or ['(-1, -1)'])})"


class Directory:
    """Reads a directory of traces. For one thread.

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

    def where(self, given: Mapping[str, str]) -> str | None:
        """The condition of the filters in an address. Raises ConfigError as `rollout.viewer.filters.condition`."""
        parts = [condition(given), self.runs.condition(given["runs"]) if given.get("runs") else None]
        return " AND ".join(part for part in parts if part) or None

    def entry(self, identity: str) -> Entry:
        """The entry of a trajectory. Raises ConfigError: there is none."""
        found = next(self.traces.entries(where=f"id = {quoted(identity)}", limit=1), None)
        if found is None:
            raise ConfigError("there is no such trajectory", key=identity)
        return found

    def trained(self, entry: Entry, ids: Sequence[str]) -> dict[str, list[TrainedSegment]]:
        """What a trainer computed on trajectories of the entry's step and run, by id; empty for held-out ones."""
        if entry["validate"] or entry["step"] is None:
            return {}
        return _trained_of(self.traces.home_of(entry), ids, entry["step"], self.traces.skipped)

    def record(self, trace: Trace) -> RunRecord | None:
        """The run record of a trajectory; None if it is missing."""
        if trace.run not in self._records:
            self._records = read_run_records(self.traces.directory, skipped=self.traces.skipped)
        return self._records.get(trace.run)

    def unit(self, trace: Trace) -> str:
        """What the ids of a trajectory stand for: `tokens`, or `bytes` where the policy gave text only."""
        record = self.record(trace)
        return "bytes" if record is not None and record.token_ids is TokenIds.BYTES else "tokens"

    def texts(self, trace: Trace) -> TokenTexts:
        """The texts of the trajectory's tokens."""
        if trace.run not in self._texts:
            self._texts[trace.run] = token_texts(self.record(trace), self._tokenizer)
        return self._texts[trace.run]


def _trained_of(home: Path, ids: Iterable[str], step: int, skipped: Skipped) -> dict[str, list[TrainedSegment]]:
    """What a trainer computed on these trajectories, by id. `step` is theirs; asynchronous modes train them later."""
    wanted = set(ids)
    found: dict[str, list[TrainedSegment]] = {}
    if not trained_files(home):
        return found
    with parquet_needed(str(home)):
        from mcp_rollout.rollout.trace.trained import read_trained
    for each in read_trained(home, trace=wanted, step=step, skipped=skipped):
        found.setdefault(each.trace, []).append(each)
    # The step's file first: to look through the files of all steps takes far longer.
    if not found:
        for each in read_trained(home, trace=wanted, skipped=skipped):
            found.setdefault(each.trace, []).append(each)
    return found
