"""The clock of trajectories, which stands still while their engine is taken from them."""

from __future__ import annotations

import math
from collections.abc import Generator
from contextlib import contextmanager

import anyio


class Clock:
    """Measures and limits the time of trajectories. One event loop uses it.

    Stopped while a trainer holds the engine: what a trajectory may take does not depend on what a trainer's step takes.
    """

    def __init__(self) -> None:
        self._stopped_at: float | None = None
        self._stood = 0.0
        self._scopes: set[anyio.CancelScope] = set()
        self._left: dict[anyio.CancelScope, float] = {}
        """Seconds that scopes have left, while the clock is stopped."""

    def time(self) -> float:
        """Seconds from an arbitrary moment, without those in which the clock was stopped."""
        return (anyio.current_time() if self._stopped_at is None else self._stopped_at) - self._stood

    def stop(self) -> None:
        """Stand still from now on; nothing happens if the clock stands still already."""
        if self._stopped_at is None:
            self._stopped_at = anyio.current_time()
            for scope in self._scopes:
                self._suspend(scope)

    def start(self) -> None:
        """Go on; nothing happens if the clock is running."""
        if self._stopped_at is not None:
            now = anyio.current_time()
            self._stood, self._stopped_at = self._stood + now - self._stopped_at, None
            for scope, left in self._left.items():
                scope.deadline = now + left
            self._left.clear()

    @contextmanager
    def move_on_after(self, seconds: float) -> Generator[anyio.CancelScope]:
        """As `anyio.move_on_after`, on this clock."""
        with anyio.move_on_after(seconds) as scope:
            self._scopes.add(scope)
            if self._stopped_at is not None:
                self._suspend(scope)
            try:
                yield scope
            finally:
                self._scopes.discard(scope)
                self._left.pop(scope, None)

    def _suspend(self, scope: anyio.CancelScope) -> None:
        if not scope.cancel_called:
            self._left[scope] = scope.deadline - anyio.current_time()
            scope.deadline = math.inf
