"""`benchmarks sessions`: thousands of stateful sessions on this machine, beside OpenEnv's own client and server.

Each cell runs in its own process (`run_cell`), and the rows alternate within a repeat, so that other load
of the machine affects all rows alike.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from lab.benchmarks.runs import run_cell
from lab.benchmarks.server_programs import missing_descriptors
from lab.benchmarks.sessions import TRANSPORTS
from mcp_rollout.gateway.leases.opening import http_posts_at_once
from mcp_rollout.rollout.cli.options import AsJson, output_console, print_json

OPENENV = "openenv"
ROWS = (*TRANSPORTS, OPENENV)
NAMES = {
    "in_process": "in process, the kit's",
    "stdio": "stdio",
    "http": "HTTP, the kit's server",
    "http_sdk": "HTTP, the SDK's server",
    OPENENV: "OpenEnv's client and server",
}
SIZES = (512, 2048)
_OPENENV_PYTHON = Path(".venv-mcp1/bin/python")


def bench_sessions(
    sessions: Annotated[list[int] | None, typer.Option("-n", min=1, help="Sessions, once for each size.")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps of each session; the server waits a second in each.")] = 3,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each cell; medians are reported.")] = 1,
    over: Annotated[list[str] | None, typer.Option(help=f"Once for each of {', '.join(ROWS)}; default: all.")] = None,
    openenv: Annotated[
        Path, typer.Option(help="Python of the environment with openenv (make mcp1).")
    ] = _OPENENV_PYTHON,
    as_json: AsJson = False,
) -> int:
    """Hold N sessions with state of their own, each taking steps of a second, over each transport and with OpenEnv."""
    rows = list(dict.fromkeys(over or ROWS))
    if unknown := set(rows) - set(ROWS):
        raise typer.BadParameter(f"{', '.join(sorted(unknown))}: not one of {', '.join(ROWS)}", param_hint="--over")
    wanted = [row for row in rows if row != OPENENV or openenv.is_file()]
    if len(wanted) < len(rows):
        missing = f"{openenv} is missing; `make mcp1` sets it up"
        if over:
            raise typer.BadParameter(missing, param_hint="--openenv")
        sys.stderr.write(f"without OpenEnv: {missing}\n")
    _check_descriptors(wanted, max(sessions or SIZES))  # before anything is measured
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    failed = 0
    for _ in range(repeats):
        for number in sessions or SIZES:
            for row in wanted:
                try:
                    cell = _cell(row, number, steps, openenv)
                except typer.Exit as ended:  # said already; hours may have gone into the others
                    failed = failed or ended.exit_code
                    continue
                found.setdefault((row, number), []).append(cell)
    cells = [{"over": row, **_median(runs)} for (row, _), runs in found.items()]
    if as_json:
        print_json({"steps": steps, "repeats": repeats, "cells": cells})
    elif cells:
        output_console().print(_table(cells))
    return failed


def _check_descriptors(rows: Sequence[str], sessions: int) -> None:
    """Raises typer.BadParameter where a cell could not hold its sessions; notes where calls would wait for others."""
    over_http = not {"http", "http_sdk"}.isdisjoint(rows)
    if (over_http or OPENENV in rows) and (message := missing_descriptors(sessions)):
        raise typer.BadParameter(f"{message}, or leave out HTTP and OpenEnv by --over", param_hint="-n")
    if over_http and (posts := http_posts_at_once()) < sessions:
        sys.stderr.write(
            f"note: with this process's limit of open files (ulimit -Hn) at most {posts} of {sessions} calls over HTTP "
            "are under way at a time; p50 and p99 include the wait\n"
        )


def _cell(row: str, sessions: int, steps: int, openenv: Path) -> dict[str, Any]:
    if row == OPENENV:
        return run_cell("lab.benchmarks.openenv_peer", str(sessions), str(steps), python=str(openenv.absolute()))
    return run_cell("lab.benchmarks.sessions", row, str(sessions), str(steps))


def _median(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians of the figures, the most steps lost, and all failures."""
    failures: dict[str, int] = {}
    for run in runs:
        for name, count in run["failures"].items():
            failures[name] = failures.get(name, 0) + count
    measured = [name for name in runs[0] if name not in ("failures", "sessions")]
    figures = {name: statistics.median(run[name] for run in runs) for name in measured}
    rounded = {name: round(value, 4) for name, value in figures.items()}
    return {"sessions": runs[0]["sessions"], **rounded, "lost": max(run["lost"] for run in runs), "failures": failures}


def _table(cells: Sequence[dict[str, Any]]) -> Table:
    table = Table(
        "over", "sessions", "steps/s", "p50, ms", "p99, ms", "lost", "client, ms", "server, ms", "KB each", "opened, s"
    )
    for cell in cells:
        table.add_row(
            NAMES[cell["over"]],
            str(cell["sessions"]),
            f"{cell['steps_per_s']:.0f}",
            f"{1e3 * cell['p50_s']:.0f}",
            f"{1e3 * cell['p99_s']:.0f}",
            str(cell["lost"]),
            f"{cell['client_ms']:.2f}",
            f"{cell['server_ms']:.2f}",
            f"{cell['client_kb'] + cell['server_kb']:.0f}",
            f"{cell['open_s']:.1f}",
        )
    return table
