"""A clock of the event loop that is moved forward without waiting: limits expire, and no result depends on speed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.lowlevel
import pytest

T = TypeVar("T")


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

    async def outlast(self, call: Coroutine[Any, Any, T], seconds: float) -> T:
        """What a call comes to that hangs for so long.

        It hangs once every task waits: nothing else may be under way.
        """
        task = asyncio.ensure_future(call)
        try:
            await self.advance(seconds)
            return await task
        finally:
            task.cancel()

    @asynccontextmanager
    async def passing(self, seconds: float, *, whenever: Callable[[], bool]) -> AsyncIterator[None]:
        """Within the block so many seconds pass whenever `whenever`, which is asked again and again, is true."""

        async def watch() -> None:
            while True:
                await asyncio.sleep(0.005)
                if whenever():
                    await self.advance(seconds)

        watching = asyncio.ensure_future(watch())
        try:
            yield
        finally:
            watching.cancel()


def made(file: Path) -> Callable[[], bool]:
    """Whether another process has made the file since it was last asked; each answer deletes it."""

    def found() -> bool:
        try:
            file.unlink()
        except FileNotFoundError:
            return False
        return True

    return found
