"""Traces without what differs between two runs of the same trajectories: ids and times."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from mcp_rollout.rollout.trace.journal import to_json
from mcp_rollout.rollout.trace.record import Trace

_TIMES = frozenset({"began_at", "elapsed_s", "lease_wait_s", "generate_s", "wait_s"})


def timeless(trace: Trace, *, without_engine: bool = False) -> str:
    """The record as JSON, without times and the trajectory's id, nor the engine where it is to be left out."""
    text = to_json(trace).decode().replace(trace.id, "ID")
    record = _without_times(json.loads(text))
    if without_engine:
        del record["origin"]["engine"], record["run"]
    return json.dumps(record, ensure_ascii=False)


def all_timeless(traces: Iterable[Trace], **options: Any) -> list[str]:
    """Of several traces, in the order of rows and samples."""
    ordered = sorted(traces, key=lambda trace: (trace.task.environment, trace.origin.row, trace.origin.sample))
    return [timeless(trace, **options) for trace in ordered]


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_times(inner) for name, inner in value.items() if name not in _TIMES}
    return [_without_times(inner) for inner in value] if isinstance(value, list) else value
