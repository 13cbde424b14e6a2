"""Runs for many trajectories, so many at a time, off the event loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import anyio
import anyio.to_thread
from mcp.server.mcpserver.exceptions import ToolError

from mcp_servers._jail.jail import Ending, JailUnavailable, Run, run
from mcp_servers._jail.limits import Limits
from mcp_servers.sandbox.judge import Verdict, judge
from mcp_servers.sandbox.problems import Check, Problem

MAX_SHOWN = 4000
"""Characters of output that the policy reads, the first and the last half of them."""


@dataclass(slots=True)
class Bench:
    """One trajectory: its problem, and what it submitted last."""

    problem: Problem
    submitted: str | None = None


class Workbench:
    """Everything here raises ToolError where this machine does not isolate code: nothing is run then."""

    def __init__(self, parallel: int, limits: Limits) -> None:
        self._limits = limits
        self._places = anyio.CapacityLimiter(parallel)
        self._proven = False

    async def prove(self) -> None:
        """That code is isolated here, tried once: better at the reset than in the middle of a trajectory."""
        if not self._proven:
            await self.run("")
            self._proven = True

    async def run(self, source: str) -> Run:
        try:
            return await anyio.to_thread.run_sync(run, source, self._limits, limiter=self._places)
        except JailUnavailable as error:
            raise ToolError(str(error)) from error

    async def judge(self, source: str, tests: Sequence[Check]) -> Verdict:
        try:
            return await anyio.to_thread.run_sync(judge, source, tests, self._limits, limiter=self._places)
        except JailUnavailable as error:
            raise ToolError(str(error)) from error


def shown(made: Run) -> str:
    """What the policy reads about a run."""
    text = made.output
    if len(text) > MAX_SHOWN:
        text = f"{text[: MAX_SHOWN // 2]}\n[... {len(text) - MAX_SHOWN} characters ...]\n{text[-MAX_SHOWN // 2 :]}"
    if made.ending in (Ending.FINISHED, Ending.FAILED):
        return text or "(no output)"
    return f"{text}\n[the run ended: {made.ending}]".lstrip()
