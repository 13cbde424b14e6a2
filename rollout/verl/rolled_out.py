"""Columns of verl's TransferQueue that the advantage estimators read beside the rewards.

Session and output of a sample are in its key, `{uid}_{session}_{output}`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mcp_rollout.gateway.types import canonical_json
from mcp_rollout.rollout.trace.record import Segment, Trace

TURNS_COLUMN, VERSIONS_COLUMN, COLUMN = "mcp_turns", "mcp_versions", "mcp"
_START = "start"
"""The anchor of the first turn: all trajectories of a row begin in one state."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RolledOut:
    """One trajectory of a batch."""

    uid: str
    """Its group."""
    score: float
    turns: int
    """Number of its turns."""
    tree: str
    """The root that it shares a beginning with, by trajectory id; its own for a root and outside trees."""
    shared_turns: int = 0
    """Turns that it shares with the root; 0 for a root and outside trees."""
    rewards: Sequence[float] = ()
    """The weighted reward of each turn, contained in `score`; empty where no turn has one."""
    anchors: Sequence[str] = ()
    """By turn, a digest of the state in which it was taken; empty where no server gives one."""


def columns(trace: Trace, segment: Segment) -> dict[str, Any]:
    """The columns of one training sample."""
    turns = [-1] * len(segment.response_ids)
    for span in segment.spans:
        if span.kind.is_sampled:
            turns[span.start : span.end] = [span.turn] * (span.end - span.start)
    versions = [-1 if version is None else version for version in trace.versions(segment)]
    of_trajectory = {
        "turns": len(trace.turns),
        "tree": trace.origin.parent or trace.id,
        "shared_turns": trace.strategy.shared_turns,
        "rewards": list(trace.reward.turns) if trace.reward else [],
        "anchors": anchors(trace),
    }
    by_token = {TURNS_COLUMN: turns, VERSIONS_COLUMN: versions}
    return {name: torch.tensor(each, dtype=torch.int64) for name, each in by_token.items()} | {COLUMN: of_trajectory}


def anchors(trace: Trace) -> list[str]:
    """By turn, a digest of the last states that the servers gave before it.

    A server gives its state with each result after which it may have changed (`mcp-rollout/state` in `_meta`).
    """
    states: dict[str, str] = {}
    found: list[str] = []
    for turn in trace.turns:
        # A summary acts on no state: it is compared in the row only.
        known = canonical_json(states) if states and not turn.is_summary else ""
        found.append(known if found else known or _START)
        states |= {event.server or "": event.state for event in turn.tools if event.state is not None}
        if turn.user is not None and turn.user.state is not None:
            states["user"] = turn.user.state
    return found
