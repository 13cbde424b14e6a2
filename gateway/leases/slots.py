"""Who may have a session now: places in the gateway and in each limited pool, granted together or not at all.

A session that held a place in one pool while it waited for another could wait for a session that does the reverse.
Here nobody ever holds one and waits.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import anyio


@dataclass(eq=False, slots=True)
class _Waiter:
    needs: frozenset[str]
    granted: anyio.Event = field(default_factory=anyio.Event)


class Slots:
    """Counted places by key; a key without a limit is never waited for.

    First come, first served: a request that waits holds back later ones that need any of the same places, so that it
    cannot starve, and no others.
    """

    def __init__(self, limits: Mapping[str, int]) -> None:
        self._limits = limits
        self._taken: Counter[str] = Counter()
        self._queue: deque[_Waiter] = deque()

    async def acquire(self, needs: frozenset[str]) -> None:
        """Wait until there is a place for every key, and take them. Whoever stops waiting has taken none."""
        waiter = _Waiter(needs)
        self._queue.append(waiter)
        self._grant()
        try:
            await waiter.granted.wait()
        except BaseException:
            if waiter.granted.is_set():
                self.release(needs)
            else:
                self._queue.remove(waiter)
                self._grant()
            raise

    def release(self, needs: frozenset[str]) -> None:
        """Give back what `acquire` took."""
        self._taken.subtract(needs)
        self._grant()

    def full(self, needs: frozenset[str]) -> list[str]:
        """Those of `needs` that have no free place, sorted."""
        return sorted(key for key in needs if key in self._limits and self._taken[key] >= self._limits[key])

    def _grant(self) -> None:
        held_back: set[str] = set()
        for waiter in list(self._queue):
            if not held_back.isdisjoint(waiter.needs) or self.full(waiter.needs):
                held_back |= waiter.needs & self._limits.keys()
            else:
                self._taken.update(waiter.needs)
                self._queue.remove(waiter)
                waiter.granted.set()
