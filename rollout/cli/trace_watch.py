"""`trace watch`: follow the processes that write traces to a directory."""

from __future__ import annotations

import time
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live

from gateway.errors import ConfigError
from rollout.cli.live import line_of, panel_of
from rollout.cli.options import AsJson, TraceDirectory, print_json
from rollout.trace.activity import Activity
from rollout.trace.heartbeat import watched


def watch(
    directory: TraceDirectory,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between refreshes.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Report once and end.")] = False,
    as_json: AsJson = False,
) -> int:
    """Follow a training or another run: trajectories in flight, rates, errors, the slowest server, rewards.

    Reads the heartbeats that each process writes beside its traces, so that it may run on another machine that shares
    the directory. Ends with Ctrl-C.
    """
    if not directory.is_dir():
        raise ConfigError("no such directory", file=directory, remedy="name the directory of the traces")
    console = Console()
    try:
        if once or as_json or not console.is_terminal:
            while True:
                activity, at_work = watched(directory)
                _print(activity, at_work, as_json=as_json)
                if once:
                    return 0
                time.sleep(every)
        with Live(console=console, auto_refresh=False) as live:
            while True:
                activity, at_work = watched(directory)
                live.update(panel_of(_label(at_work), activity), refresh=True)
                time.sleep(every)
    except KeyboardInterrupt:
        return 0


def _print(activity: Activity, at_work: int, *, as_json: bool) -> None:
    if as_json:
        print_json({"processes_at_work": at_work} | activity.model_dump(mode="json"))
    else:
        typer.echo(f"{time.strftime('%H:%M:%S')} {_label(at_work)}: {line_of(activity)}")


def _label(at_work: int) -> str:
    return f"{at_work} {'process' if at_work == 1 else 'processes'} at work"
