"""CPU time of each callback of an event loop and between another task's turns, and who ran the long ones."""

from __future__ import annotations

import asyncio
import gc
import time
from asyncio.base_events import BaseEventLoop
from asyncio.events import Handle
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any


class Callbacks:
    """CPU seconds of each callback that an event loop ran."""

    def __init__(self, above_s: float) -> None:
        self._above_s = above_s
        self.longest_s = 0.0
        self.longest_name = ""
        self.slow: Counter[str] = Counter()
        """Callbacks above the bound, by what they belong to."""
        self.longest_turn_s = 0.0
        """CPU seconds of the longest iteration of the loop: as long may a ready task wait for its turn, as
        an iteration runs everything that was ready when it began."""
        self.longest_collection_s = 0.0
        """Of the garbage collector, whose pauses are in no callback's time."""

    def note(self, name: str, spent_s: float) -> None:
        """Count one callback."""
        if spent_s > self.longest_s:
            self.longest_s, self.longest_name = spent_s, name
        if spent_s > self._above_s:
            self.slow[name] += 1


def described(handle: Handle) -> str:
    """The task that a callback is a step of, by name and coroutine; or the callback."""
    callback = handle._callback  # pyright: ignore
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return f"{owner.get_name()} {getattr(owner.get_coro(), '__qualname__', '')}".rstrip()
    return getattr(callback, "__qualname__", repr(callback))


@contextmanager
def timed(above_s: float) -> Generator[Callbacks]:
    """Within the block, every callback of every loop of this thread is timed."""
    found, run = Callbacks(above_s), Handle._run  # pyright: ignore
    run_once: Any = BaseEventLoop._run_once  # pyright: ignore
    collecting_s = began_s = 0.0

    def timed_run(self: Handle) -> None:
        # CPU time of the thread: on a busy machine, most of a callback's wall time can be that of other processes.
        name, began, collected = described(self), time.thread_time(), collecting_s
        run(self)
        found.note(name, time.thread_time() - began - (collecting_s - collected))

    def timed_iteration(self: Any) -> None:
        began, collected = time.thread_time(), collecting_s
        run_once(self)
        spent_s = time.thread_time() - began - (collecting_s - collected)
        found.longest_turn_s = max(found.longest_turn_s, spent_s)

    def collecting(phase: str, _: object) -> None:
        # The collector's pauses depend on all that the process holds, and meet any callback.
        nonlocal collecting_s, began_s
        if phase == "start":
            began_s = time.thread_time()
            return
        spent_s = time.thread_time() - began_s
        collecting_s += spent_s
        found.longest_collection_s = max(found.longest_collection_s, spent_s)

    Handle._run = timed_run  # pyright: ignore
    BaseEventLoop._run_once = timed_iteration  # pyright: ignore
    gc.callbacks.append(collecting)
    try:
        yield found
    finally:
        gc.callbacks.remove(collecting)
        Handle._run = run  # pyright: ignore
        BaseEventLoop._run_once = run_once  # pyright: ignore
