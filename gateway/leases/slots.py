"""Slots for sessions in the gateway and in each limited pool, granted together or not at all.

A session that held a slot in one pool while it waited for another could wait for a session that does the reverse. Here
a session never holds one while it waits.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import anyio


@dataclass(eq=False, slots=True)
class _Waiter:
    needs: frozenset[str]
    number: int
    granted: anyio.Event = field(default_factory=anyio.Event)
    gone: bool = False


class Slots:
    """Counted slots by key; a key without a limit is always free.

    First come, first served: a waiter holds back later ones that need any of the same keys, so that it cannot starve.
    Waiters with the same needs form one queue, and a grant looks at the heads of the queues alone.

    Args:
        common: A key that every session needs. A waiter that lacks another key does not hold this one back, else one
            full pool would delay the sessions that do not need it.
    """

    def __init__(self, limits: Mapping[str, int], *, common: str | None = None) -> None:
        self.limits, self._common = limits, common
        self._taken: Counter[str] = Counter()
        self._queues: dict[frozenset[str], deque[_Waiter]] = {}
        self._numbers = itertools.count()

    def acquire_now(self, needs: frozenset[str]) -> bool:
        """Take a slot of every key if all are free and no other session waits; False where `acquire` has to wait."""
        if self._queues or self.full(needs):
            return False
        self._taken.update(needs)
        return True

    async def acquire(self, needs: frozenset[str]) -> None:
        """Wait until every key has a free slot, and take them all. A cancelled wait has taken none."""
        waiter = _Waiter(needs, next(self._numbers))
        self._queues.setdefault(needs, deque()).append(waiter)
        self._grant()
        try:
            await waiter.granted.wait()
        except BaseException:  # cleanup: only a cancellation ends the wait early
            # Granted and cancelled in the same turn of the event loop: the caller never learns that it has them.
            if waiter.granted.is_set():
                self.release(needs)
            else:
                # Marked, not removed, which would search the queue; as a head it may have held back others.
                waiter.gone = True
                self._grant()
            raise

    def release(self, needs: frozenset[str]) -> None:
        """Give back what `acquire` took."""
        self._taken.subtract(needs)
        self._grant()

    def full(self, needs: frozenset[str]) -> list[str]:
        """Those of `needs` that have no free slot, sorted."""
        return sorted(key for key in needs if key in self.limits and self._taken[key] >= self.limits[key])

    def _grant(self) -> None:
        held_back: set[str] = set()
        heads = [(queue[0].number, needs) for needs in list(self._queues) if (queue := self._waiting(needs))]
        heapq.heapify(heads)
        while heads:
            _, needs = heapq.heappop(heads)
            full = self.full(needs)
            if full or not held_back.isdisjoint(needs):
                held_back |= {*full, *(needs - {self._common})} & self.limits.keys()
                continue  # and with this waiter the rest of its queue
            self._taken.update(needs)
            self._queues[needs].popleft().granted.set()
            if queue := self._waiting(needs):
                heapq.heappush(heads, (queue[0].number, needs))

    def _waiting(self, needs: frozenset[str]) -> deque[_Waiter]:
        """The waiters with these needs, without those that stopped waiting."""
        queue = self._queues[needs]
        while queue and queue[0].gone:
            queue.popleft()
        if not queue:
            del self._queues[needs]
        return queue
