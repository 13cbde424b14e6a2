"""Live progress of trajectories in flight, on a terminal or as plain lines, and `trace watch`, which follows a run."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Annotated

import anyio
import typer
from rich.console import RenderableType
from rich.live import Live
from rich.text import Text

from mcp_rollout.gateway.catalogue.hidden_text import plain
from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.rollout.cli.options import AsJson, TraceDirectory, print_json
from mcp_rollout.rollout.cli.output import Console
from mcp_rollout.rollout.trace.activity import Activity
from mcp_rollout.rollout.trace.heartbeat import watched

ProgressEvery = Annotated[
    float,
    typer.Option(min=0.1, help="Seconds between lines of progress where standard error is not a terminal."),
]
REFRESH_S = 0.5
_KINDS = 4
"""Kinds of errors that are shown, the most frequent ones."""


def line_of(activity: Activity, *, total: int | None = None, done: int | None = None) -> str:
    """One line for people. Arguments as of `parts_of`."""
    return "; ".join(parts_of(activity, total=total, done=done))


def parts_of(activity: Activity, *, total: int | None = None, done: int | None = None) -> list[str]:
    """What is shown of an activity, the counts of trajectories first.

    Args:
        total: number of trajectories that will be played, where it is known.
        done: number that are done, including those of earlier runs; those of the activity by default.
    """
    finished = activity.finished if done is None else done
    parts = [f"{finished}{f' of {total}' if total is not None else ''} done, {activity.in_flight} in flight"]
    rates = activity.rates
    parts.append(f"per second: {rates.turns:.1f} turns, {rates.calls:.1f} calls, {rates.tokens:.0f} tokens")
    if (mean := activity.rewards.mean) is not None:
        parts.append(f"reward: {mean:.3f}")
    for step, rewards in activity.steps.items():
        parts.append(f"step {step}: {rewards.mean or 0:.3f} ({rewards.count})")
    for name, counts in (("failed", activity.failed), ("call errors", activity.errors)):
        if counts:
            most = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
            rest = f", {len(most) - _KINDS} more kinds" if len(most) > _KINDS else ""
            parts.append(f"{name}: " + ", ".join(f"{count} {kind}" for kind, count in most[:_KINDS]) + rest)
    if (slowest := activity.slowest) is not None:
        server, times = slowest
        parts.append(f"slowest server: {server} {times.mean_s:.3f} s a call, at most {times.slowest_s:.3f} s")
    if (oldest := activity.oldest) is not None:
        doing = f"{plain(oldest.task)} {oldest.elapsed_s:.0f} s, {oldest.turns} turns ({oldest.id[:12]})"
        parts.append(f"longest: {doing}")
    return parts


def _panel(label: str, parts: Sequence[str]) -> Text:
    """The parts below each other, for a terminal. What servers wrote is text: no markup of it is read."""
    return Text("\n  ".join([f"{label}: {parts[0]}", *parts[1:]]))


@asynccontextmanager
async def shown_live(
    label: str, activity: Callable[[], Activity], *, total: int, earlier: int, every_s: float
) -> AsyncGenerator[None]:
    """Show progress on standard error while the block runs.

    Args:
        total: number of trajectories, those of earlier runs included.
        earlier: number of those.
        every_s: seconds between plain lines; a terminal is refreshed every `REFRESH_S`.
    """

    def parts() -> list[str]:
        now = activity()
        return parts_of(now, total=total, done=earlier + now.finished)

    async with shown(lambda: _panel(label, parts()), lambda: f"{label}: {'; '.join(parts())}", every_s=every_s):
        yield


@asynccontextmanager
async def shown(
    panel: Callable[[], RenderableType], line: Callable[[], str], *, every_s: float
) -> AsyncGenerator[None]:
    """Show progress on standard error while the block runs: a panel on a terminal, else lines `every_s` apart."""
    console = Console(stderr=True)

    async def refresh(live: Live) -> None:
        while True:
            live.update(panel(), refresh=True)
            await anyio.sleep(REFRESH_S)

    async def print_lines() -> None:
        while True:
            await anyio.sleep(every_s)
            typer.echo(f"{_clock()} {line()}", err=True)

    async with anyio.create_task_group() as tasks:
        if console.is_terminal:
            with Live(console=console, auto_refresh=False, transient=True) as live:
                tasks.start_soon(refresh, live)
                yield
                tasks.cancel_scope.cancel()
        else:
            tasks.start_soon(print_lines)
            yield
            tasks.cancel_scope.cancel()


@asynccontextmanager
async def shown_steps(label: str, *, every_s: float) -> AsyncGenerator[Callable[[str], None]]:
    """Show what the block says that it is doing, as `shown`."""
    doing = ["starting"]

    def line() -> str:
        return f"{label}: {doing[-1]}"

    async with shown(lambda: Text(line()), line, every_s=every_s):
        yield doing.append


def _clock() -> str:
    return time.strftime("%H:%M:%S")


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
                live.update(_panel(_label(at_work), parts_of(activity)), refresh=True)
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
