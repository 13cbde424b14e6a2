"""Which call meets which fault: a function of the seed and the call's name, the same in every process."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum


class Fault(StrEnum):
    """What the server does with one call, the first time that it arrives. A repeated call is answered."""

    BEFORE = "lost before the effect"
    AMID = "lost in the effect"
    AFTER = "lost after the effect"
    HALF = "half a frame"
    TWICE = "answered twice"
    LATE = "answered late"
    WRONG_ID = "answered with another's id"
    HANG = "never answered"
    DIES = "dies and comes back"
    MOVED = "redirected within the origin"
    AWAY = "redirected to another origin"
    CHANGED = "tools changed"
    FLOOD = "flood"


LATE_S = 4.0
"""Above the timeout of the best settings (`adapters`), below every default."""
DOWN_S = 1.0
"""How long a server that died refuses connections."""
FLOOD = 2000
"""Notifications before the answer of a flood."""
REFUSED = "no such tool"
"""What a call by a name that has changed is answered, as an error result."""
ONLY_HTTP = frozenset((Fault.DIES, Fault.MOVED, Fault.AWAY))
"""Over pipes, a server that dies is a line that is lost."""
COSTLY = frozenset((Fault.WRONG_ID, Fault.HANG))
"""May cost a client the whole deadline of the benchmark, so fewer calls meet them."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The faults of one run.

    Args:
        kinds: To draw from; none for a run without faults.
        share: Of the calls that meet one; of a costly fault 0.4 of it.
    """

    seed: str
    kinds: tuple[Fault, ...]
    share: float = 0.1

    def fault(self, call: str) -> Fault | None:
        """The fault of this call, or None."""
        rng = self.rng(call)
        if not self.kinds or rng.random() >= self.share:
            return None
        kind = rng.choice(self.kinds)
        return None if kind in COSTLY and rng.random() >= 0.4 else kind

    def rng(self, *names: str) -> random.Random:
        """Numbers that depend on the seed and these names only."""
        return random.Random("/".join((self.seed, *names)))


def call_name(trajectory: str, turn: int, place: int) -> str:
    """The name of a call among its arguments; `place` is 0 or 1, its place within the turn."""
    return f"{trajectory}.{turn}.{place}"


def sibling(call: str) -> str:
    """The other call of the same turn."""
    return call[:-1] + str(1 - int(call[-1]))


def text_of(call: str) -> str:
    """What the tool answers a call, and no other."""
    return f"{call} done"
