"""What a served gateway counts, in Prometheus' text format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from gateway.serve.bearers import Bearer

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"


@dataclass(eq=False, slots=True)
class Counts:
    """Totals since the start."""

    calls: Counter[str] = field(default_factory=Counter[str])
    """Executed calls by outcome: `result`, `error_result`, or the code of a failure."""
    refused: Counter[int] = field(default_factory=Counter[int])
    """Requests that were refused, by HTTP status."""


def exposition(counts: Counts, bearers: Iterable[Bearer], *, leases: int, granted: int, freed: int) -> bytes:
    """All metrics as text."""
    lines = [
        *_metric("leases", "gauge", "Leases, waiting ones included.", {"": leases}),
        *_metric("leases_granted_total", "counter", "Leases that were granted.", {"": granted}),
        *_metric("leases_freed_total", "counter", "Leases that were freed because their client vanished.", {"": freed}),
        *_metric("calls_total", "counter", "Executed calls by outcome.", _labelled("outcome", counts.calls)),
        *_metric("refused_total", "counter", "Refused requests by HTTP status.", _labelled("status", counts.refused)),
    ]
    for name, text in (
        ("calls", "Calls under way by bearer."),
        ("waiting", "Leases that wait for a world, by bearer."),
        ("kept_bytes", "Bytes of outcomes that are kept for repeated calls, by bearer."),
    ):
        lines += _metric(name, "gauge", text, _labelled("bearer", {each.name: getattr(each, name) for each in bearers}))
    return ("\n".join(lines) + "\n").encode()


def _metric(name: str, kind: str, text: str, values: dict[str, int]) -> list[str]:
    full = f"mcp_rollout_{name}"
    return [f"# HELP {full} {text}", f"# TYPE {full} {kind}", *(f"{full}{label} {n}" for label, n in values.items())]


def _labelled(label: str, values: Counter[str] | Counter[int] | dict[str, int]) -> dict[str, int]:
    return {f'{{{label}="{value}"}}': number for value, number in values.items()}
