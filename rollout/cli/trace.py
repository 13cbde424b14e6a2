"""`trace ls` and `trace show`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from gateway.errors import ConfigError
from rollout.trace.record import Trace
from rollout.trace.store import read_traces, to_json
from rollout.trace.view import render


def list_traces(directory: Path, *, as_json: bool) -> int:
    if as_json:
        found = 0
        for trace in _read(directory):
            found += 1
            typer.echo(json.dumps(summary(trace), ensure_ascii=False))
        _say_if_none(directory, found)
        return 0
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name in ("id", "environment", "task", "row", "step", "turns", "reward", "stop reason"):
        # Long names of tasks are folded; the other columns keep to themselves on 80 of them.
        table.add_column(name, overflow="fold", no_wrap=name not in ("environment", "task"))
    for trace in _read(directory):
        line = summary(trace)
        reward = "-" if line["reward"] is None else f"{line['reward']:.2f}"
        step = f"{line['step']}{'v' if line['validate'] else ''}"
        row = f"{line['row']}.{line['sample']}"
        cells = [trace.id[:8], line["environment"], line["task"], row, step, line["turns"]]
        table.add_row(*map(str, cells), reward, line["stop_reason"])
    if table.row_count:
        Console().print(table)
    _say_if_none(directory, table.row_count)
    return 0


def _say_if_none(directory: Path, found: int) -> None:
    if not found:
        typer.echo(f"{directory}: no traces here", err=True)


def show_trace(directory: Path, trajectory: str, *, full: bool, as_json: bool) -> int:
    found = [trace for trace in _read(directory) if trace.id.startswith(trajectory)]
    if len(found) != 1:
        problem = "no such trajectory" if not found else f"{len(found)} trajectories begin like this"
        raise ConfigError(problem, file=directory, key=trajectory, remedy="see `mcp-rollout trace ls`")
    if as_json:
        typer.echo(to_json(found[0]).decode())
    else:
        Console().print(render(found[0], full=full))
    return 0


def summary(trace: Trace) -> dict[str, Any]:
    """A trajectory in one line."""
    return {
        "id": trace.id,
        "environment": trace.task.environment,
        "task": trace.task.task,
        "seed": trace.task.seed,
        "row": trace.origin.row,
        "sample": trace.origin.sample,
        "step": trace.origin.step,
        "validate": trace.origin.validate_,
        "turns": len(trace.turns),
        "tool_calls": trace.tool_calls,
        "tool_errors": trace.tool_errors,
        "tokens": len(trace.prompt_ids) + len(trace.response_ids),
        "reward": trace.reward.score if trace.reward else None,
        "reward_parts": trace.reward.parts if trace.reward else {},
        "stop_reason": str(trace.stop_reason),
        "failure": f"{trace.failure.kind}: {trace.failure.message}" if trace.failure else None,
        "elapsed_s": trace.elapsed_s,
    }


def _read(directory: Path) -> Iterator[Trace]:
    if not directory.is_dir():
        raise ConfigError("no such directory", file=directory, remedy="name the directory of the traces")
    return read_traces(directory)
