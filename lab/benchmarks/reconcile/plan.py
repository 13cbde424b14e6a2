"""What happens in each row: a function of the seed and the row's name, the same in every process.

A row is named `LANE-NUMBER`; a lane is a way to reach worlds. Imports nothing outside the standard library, since the
worlds' server does not.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Literal

from lab.benchmarks.faults.plan import ONLY_HTTP, Fault, Plan, call_name

LANES = ("http", "sse", "serve", "fork", "spawn")
OVER_PIPES = frozenset(("fork", "spawn"))
ROLES = ("reset", "start", "reply", "score", "release")
CALLS_OF_A_SCORE = 40
"""A world's score is the number of its effects divided by this."""
CHANGE = "change"
"""The file which says that the next connection finds a changed tool; that connection alone, and it removes the file."""

# A changed tool ends every later lease of its server in that run, so `changes` counts them.
_KINDS = tuple(kind for kind in Fault if kind is not Fault.CHANGED)
_EXCLUDED: dict[str, frozenset[Fault]] = {
    # Over one stream for all answers there is no redirect of one call, and the other call of a turn takes its id.
    "sse": frozenset((Fault.MOVED, Fault.AWAY, Fault.WRONG_ID)),
    # Over pipes, an answer with the id of another call in flight is that call's.
    **dict.fromkeys(OVER_PIPES, ONLY_HTTP | {Fault.WRONG_ID}),
}


class Inside(StrEnum):
    """What breaks in the run's own process, when the policy is asked for a certain turn."""

    REFUSES = "engine refuses"
    HANGS = "engine hangs"
    IDS = "engine gives impossible ids"
    ABORTS = "engine aborts"
    FULL = "trace store full"
    READ_ONLY = "trace store read-only"
    DESCRIPTORS = "no descriptors"
    CLOCK = "clock jumps"


Step = Literal["call", "two calls", "say", "worst"]


@dataclass(frozen=True, kw_only=True)
class Storm(Plan):
    """A whole run.

    Args:
        kinds: Faults of the worlds' server.
        share: Of its calls, the harness's among them, that meet a fault.
        inside: Faults of the run's own process.
        inside_share: Of rows that meet one.
        rows: Of each lane.
        lanes: Of `LANES`.
        turns: Of each trajectory.
        kills: Processes that are killed, spread over the run.
        changes: Times that a server has a changed tool for one connection, spread over the run.
    """

    kinds: tuple[Fault, ...] = _KINDS
    inside: tuple[Inside, ...] = tuple(Inside)
    inside_share: float = 0.1
    rows: int = 10
    lanes: tuple[str, ...] = LANES
    turns: int = 15
    kills: int = 0
    changes: int = 0

    @property
    def calm(self) -> Storm:
        """The same run without faults."""
        return dataclasses.replace(self, kinds=(), inside=(), kills=0, changes=0)

    @property
    def names(self) -> list[str]:
        """Of all rows."""
        return [f"{lane}-{number}" for number in range(self.rows) for lane in self.lanes]

    def fault(self, call: str) -> Fault | None:
        kind = super().fault(call)
        row = call.partition(".")[0]
        if kind is None or kind in _EXCLUDED.get(lane_of(row), ()):
            return None
        if call.rpartition(".")[0].rpartition(".")[2].rstrip("0123456789") in ROLES:
            # Only what needs no second call of the turn.
            return None if kind is Fault.WRONG_ID else kind
        # A server that dies takes all worlds over HTTP along.
        return None if kind is Fault.DIES and self.rng(call, "dies").random() > 0.2 else kind

    def breaks_inside(self, row: str) -> tuple[int, Inside] | None:
        """The turn in which the run's process breaks in this row, and how."""
        rng = self.rng(row, "inside")
        if not self.inside or rng.random() >= self.inside_share:
            return None
        return rng.randrange(1, self.turns), rng.choice(self.inside)

    def steps(self, row: str) -> list[Step]:
        """What the policy does in each turn."""
        rng = self.rng(row, "steps")
        kinds: tuple[Step, ...] = ("call", "two calls", "say", "worst")
        return ["call", *(rng.choices(kinds, (70, 15, 8, 7))[0] for _ in range(self.turns - 1))]

    def calls(self, row: str) -> list[str]:
        """The policy's calls that reach the world, if nothing breaks."""
        places = {"call": (0,), "two calls": (0, 1)}
        return [
            call_name(row, turn, place) for turn, step in enumerate(self.steps(row)) for place in places.get(step, ())
        ]

    def write(self, folder: Path) -> None:
        (folder / "plan.json").write_text(json.dumps(dataclasses.asdict(self)))

    @classmethod
    def read(cls, folder: Path) -> Storm:
        given = json.loads((folder / "plan.json").read_text())
        kinds = {"kinds": tuple(map(Fault, given["kinds"])), "inside": tuple(map(Inside, given["inside"]))}
        return cls(**{**given, **kinds, "lanes": tuple(given["lanes"])})


def lane_of(row: str) -> str:
    return row.partition("-")[0]
