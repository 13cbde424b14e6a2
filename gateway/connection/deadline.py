"""The deadlines of calls: cheaper than `anyio.move_on_after`, and they can be suspended."""

from __future__ import annotations

import asyncio
import math
from types import TracebackType
from typing import Self


class Deadlines:
    """The calls in flight that have the same time to take, in the order in which they began: one timer serves all.

    A timer for each call would cost more than the rest of a deadline, and make the event loop's heap larger.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self.running: dict[Deadline, float] = {}
        """When the time of each is over, on the event loop's clock."""
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, deadline: Deadline) -> float:
        """Add a call that begins now; returns when its time is over."""
        loop = asyncio.get_running_loop()
        at = self.running[deadline] = loop.time() + self._timeout_s
        if self._timer is None and at != math.inf:
            self._timer = loop.call_at(at, self._expire)
        return at

    def _expire(self) -> None:
        self._timer, loop = None, asyncio.get_running_loop()
        while self.running:
            first = next(iter(self.running))
            # The call that the timer was set for was answered: now it is set for the earliest that was not.
            if (at := self.running[first]) > loop.time():
                self._timer = loop.call_at(at, self._expire)
                return
            del self.running[first]
            first.expire()


class Deadline:
    """Cancels the task within the block when the time is over, and leaves the block without an error.

    As `asyncio.timeout` and unlike anyio's scopes it cancels once: what a transport then awaits to clean up is bounded
    by its own timeouts. Cancellations from outside pass, also those that come at the same time.
    """

    __slots__ = ("_at", "_cancelling", "_deadlines", "_expired", "_over", "_task", "_timer")

    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines
        self._timer: asyncio.TimerHandle | None = None
        self._expired = self._over = False

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None  # a call runs in a task
        self._task, self._cancelling = task, task.cancelling()
        self._at = self._deadlines.begin(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        self._over = True
        self._deadlines.running.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
        # Its own cancellation is taken back; where another came besides, that one leaves the block.
        only_own = self._expired and self._task.uncancel() <= self._cancelling
        return only_own and kind is not None and issubclass(kind, asyncio.CancelledError)

    def suspend(self) -> float:
        """Stop the clock; returns the seconds that are left."""
        self._deadlines.running.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return self._at - asyncio.get_running_loop().time()

    def resume(self, left_s: float) -> None:
        """Let the clock run again, with so many seconds left; no effect once the block was left."""
        # What the call was suspended for may outlast it: the task is at something else by then.
        if self._over:
            return
        loop = asyncio.get_running_loop()
        self._at = loop.time() + left_s
        if not self._expired and self._at != math.inf:
            self._timer = loop.call_at(self._at, self.expire)

    def expire(self) -> None:
        """The time is over."""
        self._expired = True
        self._task.cancel()
