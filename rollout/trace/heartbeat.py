"""Heartbeats: a small file beside each journal that reports the activity of its process."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from pathlib import Path

import structlog
from pydantic import BaseModel, ValidationError

from mcp_rollout.gateway.private_files import write_private
from mcp_rollout.rollout.trace.activity import Activity, Progress, Rates, combined
from mcp_rollout.rollout.trace.record import Trace

log = structlog.get_logger(__name__)

SUFFIX = ".live.json"
INTERVAL_S = 2.0
_MISSED = 5
"""A process whose file is so many intervals old has ended, or its event loop hangs."""


class Beat(BaseModel):
    """The content of the file."""

    process: str
    interval_s: float
    activity: Activity

    def is_fresh(self, now: float) -> bool:
        return now - self.activity.at < _MISSED * self.interval_s


class Heartbeat:
    """Writes the activity of this process to `directory` while trajectories are in flight, every `interval_s`.

    It needs a running event loop of asyncio, and takes a timer of it, but no task. A file that cannot be written is
    logged: the journal beside it raises.
    """

    def __init__(self, directory: Path) -> None:
        self.progress = Progress()
        self._process = f"{socket.gethostname()}-{os.getpid()}-{time.time_ns()}"
        self._path = directory / (self._process + SUFFIX)
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_stale = False

    def begin(self, trace: Trace) -> None:
        self.progress.begin(trace)
        self._is_stale = True
        self._schedule()

    def end(self, trace: Trace) -> None:
        self.progress.end(trace)

    def close(self) -> None:
        """Write the last state, where a trajectory has begun since the last time."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._is_stale:
            self._write()

    def _schedule(self) -> None:
        loop = asyncio.get_running_loop()
        if self._timer is None or self._loop is not loop:  # the timers of an event loop end with it
            self._loop, self._timer = loop, loop.call_later(INTERVAL_S, self._beat)

    def _beat(self) -> None:
        self._timer = None
        self._write()
        # An idle process needs no timer: what was just written stays true until a trajectory begins.
        if self.progress.in_flight:
            self._schedule()

    def _write(self) -> None:
        beat = Beat(process=self._process, interval_s=INTERVAL_S, activity=self.progress.activity())
        try:
            # Before the first trace has ended, nothing else has made the directory.
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # Readers look at any moment, and find this one or the one before.
            write_private(self._path, beat.model_dump_json() + "\n")
        except OSError as error:
            log.warning("heartbeat not written", file=str(self._path), problem=error.strerror)
        self._is_stale = self.progress.in_flight > 0


def watched(directory: Path, *, now: float | None = None) -> tuple[Activity, int]:
    """The activity of all processes that write traces to a directory or below, and how many of them are at work.

    What a process that has ended had done counts; its rates and what it had in flight do not.
    """
    now = time.time() if now is None else now
    beats: list[Beat] = []
    for path in sorted(directory.rglob(f"*{SUFFIX}")):
        try:
            beats.append(Beat.model_validate_json(path.read_bytes()))
        except (OSError, ValidationError) as error:
            log.warning("heartbeat skipped", file=str(path), problem=str(error).splitlines()[0])
    for beat in beats:
        # A process without trajectories writes no more, so that the rates of its last seconds would stay.
        if not beat.is_fresh(now) or not beat.activity.in_flight:
            beat.activity.rates = Rates()
        if not beat.is_fresh(now):
            beat.activity.in_flight, beat.activity.oldest = 0, None
    return combined(beat.activity for beat in beats), sum(beat.activity.in_flight > 0 for beat in beats)
