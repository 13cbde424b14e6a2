"""Join the sibling trajectories of a row, which AReaL starts together without identifying them to each other."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class Group(Generic[T]):
    """The siblings of one row. Each joins, plays, and hands in its result; then each gets all results."""

    def __init__(self) -> None:
        self._members = 0
        self._results: dict[int, T] = {}
        self._complete = asyncio.Event()

    def join(self) -> int:
        """The number of the sibling, from 0."""
        self._members += 1
        return self._members - 1

    def hand_in(self, member: int, result: T) -> None:
        """Every member hands in one result, also where it failed: the others wait for it."""
        self._results[member] = result
        if len(self._results) == self._members:
            self._complete.set()

    async def results(self) -> list[T]:
        """The results of all siblings, in the order of their numbers, once the last has handed in its own."""
        await self._complete.wait()
        return [self._results[member] for member in range(self._members)]


class Groups(Generic[T]):
    """The groups whose siblings have not all joined yet, by what identifies them."""

    def __init__(self) -> None:
        self._joining: dict[Hashable, Group[T]] = {}

    async def join(self, key: Hashable) -> tuple[Group[T], int]:
        """The sibling's group, of which all siblings are members by now, and the sibling's number.

        AReaL starts the siblings with one `asyncio.gather`, so that each of them gets here before any goes on.
        """
        group = self._joining.setdefault(key, Group())
        member = group.join()
        await asyncio.sleep(0)
        # The first sibling that goes on closes the group: whatever has the same key later is another one.
        self._joining.pop(key, None)
        return group, member
