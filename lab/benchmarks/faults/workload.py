"""What every client is asked to do: trajectories of several turns, two calls a turn, in a session of their own.

An adapter is a program that ends in `main(connect)`. Its one argument is a `Task` as JSON; it writes a `Report` as
JSON to the task's file. Imports nothing outside the standard library.

A call that raises ends its trajectory: that is what verifiers and our trainer do, and what the plain clients leave to
their caller. An error result does not: the policy reads it. An opening that fails is tried again for `OPENING_S`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from lab.benchmarks.faults.plan import call_name

OPENING_S = 5.0
_PAUSE_S = 0.25
"""Before a failed opening is tried again."""
_ENDING_S = 5.0
"""For a session to close, after which it is left alone; it counts as a hang."""
TOOL = "append"

Outcome = Literal["result", "error", "failed", "hang"]
Call = Callable[[str, dict[str, Any]], Awaitable[tuple[str, bool]]]
"""Calls a tool with arguments; returns the text of the result, and whether it is an error result."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """One run of one client."""

    target: dict[str, Any]
    """`url`, or `command` and `args`."""
    best: bool
    """Whether the client gets its best settings for this workload, in place of its defaults."""
    report: str
    trajectories: int = 16
    lanes: int = 8
    turns: int = 5
    deadline_s: float = 70.0
    """After which a call is a hang: above the defaults of 60 seconds that some clients have."""

    def calls_of(self, trajectory: str) -> list[str]:
        """The calls of a whole trajectory."""
        return [call_name(trajectory, turn, place) for turn in range(self.turns) for place in (0, 1)]


@dataclass(kw_only=True)
class CallReport:
    """How one call ended, as the client reported it."""

    call: str
    lane: int
    began: float
    """As `time.monotonic`, which all processes of a machine share."""
    ended: float
    outcome: Outcome
    text: str


@dataclass(kw_only=True)
class TrajectoryReport:
    """Whether a client finished a trajectory, and what it raised otherwise."""

    trajectory: str
    whole: bool = False
    problem: str = ""
    calls: list[CallReport] = field(default_factory=list)


Open = Callable[[str], AbstractAsyncContextManager[Call]]
"""Opens a session for the trajectory of this name, in the task that closes it."""
Connect = Callable[[dict[str, Any], bool], AbstractAsyncContextManager[Open]]
"""A client of a target, with its best settings or its defaults."""


class Lost(Exception):
    """A call of the trajectory broke."""


class Playing:
    """The trajectories of one run."""

    def __init__(self, task: Task, open_session: Open) -> None:
        self._task, self._open = task, open_session
        self.reports: list[TrajectoryReport] = []
        self._opened: set[str] = set()

    async def run(self) -> None:
        await asyncio.gather(*(self._lane(lane) for lane in range(self._task.lanes)))

    async def _lane(self, lane: int) -> None:
        for number in range(lane, self._task.trajectories, self._task.lanes):
            report = TrajectoryReport(trajectory=f"t{number}")
            self.reports.append(report)
            until = time.monotonic() + OPENING_S
            while not await self._played(report, lane) and time.monotonic() < until:
                if report.trajectory in self._opened:  # a trajectory is played once, whatever became of it
                    break
                await asyncio.sleep(_PAUSE_S)

    async def _played(self, report: TrajectoryReport, lane: int) -> bool:
        """Play in a task of its own, since cancelling some clients takes their caller along."""
        over = asyncio.Event()
        played = asyncio.create_task(self._play(report, lane, over))
        ended = asyncio.create_task(over.wait())
        most = self._task.deadline_s * (self._task.turns + 1)
        await asyncio.wait({played, ended}, timeout=most, return_when="FIRST_COMPLETED")
        ended.cancel()
        await asyncio.wait({played}, timeout=_ENDING_S)
        if not played.done():
            report.whole, report.problem = False, f"its session did not close in {_ENDING_S:.0f} s; {report.problem}"
            if report.calls:
                report.calls[-1].outcome = "hang"
            played.cancel()
        elif played.cancelled():
            report.whole, report.problem = False, report.problem or "cancelled"
        elif (error := played.exception()) is not None:
            report.whole, report.problem = False, report.problem or _described(error)
        return report.whole

    async def _play(self, report: TrajectoryReport, lane: int, over: asyncio.Event) -> None:
        try:
            async with self._open(report.trajectory) as call:
                self._opened.add(report.trajectory)
                try:
                    for turn in range(self._task.turns):
                        names = [call_name(report.trajectory, turn, place) for place in (0, 1)]
                        await asyncio.gather(*(self._call(report, lane, call, name) for name in names))
                        if broken := [each for each in report.calls if each.outcome in ("failed", "hang")]:
                            report.problem = broken[0].text
                            raise Lost
                    report.whole = True
                finally:
                    over.set()
        except Lost:
            pass

    async def _call(self, report: TrajectoryReport, lane: int, call: Call, name: str) -> None:
        outcome: Outcome = "failed"
        began, text = time.monotonic(), "cancelled by its client"
        try:
            text, is_error = await asyncio.wait_for(call(TOOL, {"id": name}), self._task.deadline_s)
            outcome = "error" if is_error else "result"
        except TimeoutError as error:
            text = _described(error)
            if time.monotonic() - began >= self._task.deadline_s:
                outcome = "hang"
        except Exception as error:  # the boundary to the client: whatever it raises, the call failed
            text = _described(error)
        finally:
            ended = time.monotonic()
            made = CallReport(call=name, lane=lane, began=began, ended=ended, outcome=outcome, text=str(text)[:300])
            report.calls.append(made)


def _described(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}".rstrip(": ")


async def _run(task: Task, connect: Connect) -> None:
    async with connect(task.target, task.best) as open_session:
        playing = Playing(task, open_session)
        await playing.run()
        # Before the client closes, which may take for ever.
        _write(task.report, playing.reports)


def _write(path: str, reports: Sequence[TrajectoryReport]) -> None:
    Path(path).write_text(json.dumps([dataclasses.asdict(report) for report in reports]))


def main(connect: Connect) -> None:
    """Run the task of the command line with this client."""
    logging.disable(logging.CRITICAL)
    task = Task(**json.loads(sys.argv[1]))
    asyncio.run(_run(task, connect))
    os._exit(0)  # what a client left running is not waited for
