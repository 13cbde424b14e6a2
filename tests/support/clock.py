"""A clock of the event loop that is moved forward without waiting: limits expire, and no result depends on speed."""

from __future__ import annotations

import asyncio

import anyio
import anyio.lowlevel
import pytest


class Clock:
    """Replaces the time of the running event loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._loop_time, self._ahead_s = asyncio.get_running_loop().time, 0.0
        monkeypatch.setattr(asyncio.get_running_loop(), "time", self)

    def __call__(self) -> float:
        return self._loop_time() + self._ahead_s

    async def advance(self, seconds: float) -> None:
        await anyio.wait_all_tasks_blocked()
        self._ahead_s += seconds
        for _ in range(4):  # a timer's callback, and what it wakes
            await anyio.lowlevel.checkpoint()
