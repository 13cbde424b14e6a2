"""The record of a trajectory's strategy."""

from __future__ import annotations

from dataclasses import dataclass

from rollout.environment.strategy_config import Strategy


@dataclass(kw_only=True, slots=True)
class StrategyRecord:
    """The strategy of a trajectory, and for a leaf of a tree, what it took over from its parent (`origin.parent`)."""

    use: Strategy = Strategy.CHAIN
    shared_turns: int = 0
    """Number of turns taken over from the parent."""
    shared_tokens: int = 0
    """Tokens that were sampled in these turns, once for all leaves that share them."""
    replayed_calls: int = 0
    """Calls that were sent again to bring a fresh world to the branching point, user turns included."""
    restored: bool = False
    """Whether the world was restored from a snapshot instead."""
    waited_s: float = 0.0
    """Seconds until the branching point was known, before the lease."""
    diverged: str = ""
    """How a replayed call differed from the recorded one; the leaf was then rolled out as a chain."""
    lost_s: float = 0.0
    """Seconds of the attempts before this one."""
    note: str = ""
    """Why a leaf that was to branch is a chain."""
