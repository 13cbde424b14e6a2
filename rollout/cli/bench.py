"""`bench`: what a call and a lease cost on this machine."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import anyio
import typer
from rich.console import Console
from rich.table import Table

from rollout.cli.bench_call import CallCost, measure_calls
from rollout.cli.bench_lease import measure_leases
from rollout.cli.target import load_target


def bench_calls(calls: int, connects: int, *, as_json: bool) -> int:
    costs = anyio.run(measure_calls, calls, connects)
    if as_json:
        typer.echo(json.dumps(_report(costs, calls, connects)))
    else:
        Console().print(_table(costs))
    return 0


def _report(costs: dict[str, CallCost], calls: int, connects: int) -> dict[str, object]:
    def by_transport(field: str, digits: int) -> dict[str, float]:
        return {transport: round(getattr(cost, field), digits) for transport, cost in costs.items()}

    return {
        "calls": calls,
        "connects": connects,
        "ratio_to_sdk": by_transport("ratio_to_sdk", 3),
        "sdk_ms": by_transport("sdk_ms", 4),
        "session_ms": by_transport("session_ms", 4),
        "calls_per_s": by_transport("calls_per_s", 1),
        "connecting_calls_per_s": by_transport("connecting_calls_per_s", 2),
        "ratio_to_connecting": by_transport("ratio_to_connecting", 1),
    }


def _table(costs: dict[str, CallCost]) -> Table:
    table = Table("transport", "SDK, ms", "gateway, ms", "ratio", "calls/s", "connecting, calls/s", "ratio")
    for transport, cost in costs.items():
        table.add_row(
            transport,
            f"{cost.sdk_ms:.2f}",
            f"{cost.session_ms:.2f}",
            f"{cost.ratio_to_sdk:.2f}",
            f"{cost.calls_per_s:.0f}",
            f"{cost.connecting_calls_per_s:.1f}",
            f"{cost.ratio_to_connecting:.0f}",
        )
    return table


def bench_leases(file: str, environments_dir: Path, count: int, *, as_json: bool) -> int:
    cost = anyio.run(measure_leases, load_target(file, environments_dir).config, count)
    found = {name: round(value, 3) for name, value in asdict(cost).items()}
    if as_json:
        typer.echo(json.dumps(found))
    else:
        for name, value in found.items():
            Console().print(f"{name:>16}  {value}", highlight=False)
    return 0
