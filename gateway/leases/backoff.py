"""How long to leave something alone that has just failed: twice as long each time, up to a bound."""

from __future__ import annotations

import anyio

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 8.0
_MOST_DOUBLINGS = 16
"""Beyond it nothing grows any more; a server may be down for days."""


class Backoff:
    """The pauses between attempts at one thing."""

    def __init__(self) -> None:
        self._failures = 0
        self.not_before = 0.0
        """On the event loop's clock: when the next attempt may begin."""

    @property
    def pausing(self) -> bool:
        return anyio.current_time() < self.not_before

    def failed(self) -> None:
        """An attempt has failed. Of several that fail during one pause, the first one counts."""
        if not self.pausing:
            pause = min(FIRST_PAUSE_S * 2**self._failures, LONGEST_PAUSE_S)
            self._failures = min(self._failures + 1, _MOST_DOUBLINGS)
            self.not_before = anyio.current_time() + pause

    def succeeded(self) -> None:
        self._failures, self.not_before = 0, 0.0
