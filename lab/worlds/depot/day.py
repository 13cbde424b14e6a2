"""One day at the depot: the world of a trajectory, its user, its score and its expert."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from random import Random
from typing import Any

from lab.worlds.depot.parcels import FITTING, HABITS, TREATMENTS, Parcel, Problem, Treatment
from mcp_rollout.mcp_servers.kit import Call, ExpertTurn, Reply, Score, ToolError

PATIENCE = 3
"""Messages without a treated parcel that the storekeeper answers, but in `retry`; then the day is over."""


@dataclass(kw_only=True, slots=True)
class State:
    """What changes in the course of a day."""

    current: int = 0
    """Index of the parcel that is on the table; their number after the last one."""
    treatments: list[list[Treatment]] = field(default_factory=list[list[Treatment]])
    idle: int = 0
    """Messages without a treated parcel so far."""
    is_closed: bool = False
    has_key: bool = False
    """Whether the book was closed with its key, where it has one."""


@dataclass(kw_only=True, slots=True)
class Day:
    """The world. Actions return the reward that they earn; the rewards of a day sum up to its score."""

    problem: Problem
    state: State = field(default_factory=State)

    def __post_init__(self) -> None:
        self.state.treatments = self.state.treatments or [[] for _ in self.problem.parcels]

    @property
    def parcel(self) -> Parcel | None:
        """The parcel on the table."""
        left = self.problem.parcels[self.state.current :]
        return left[0] if left else None

    def saved(self) -> dict[str, Any]:
        """The day as JSON."""
        return {"task": self.problem.task, "seed": self.problem.seed, "state": asdict(self.state)}

    def on_table(self, code: str) -> Parcel:
        """The parcel of this code. Raises `ToolError` where it is not on the table."""
        if self.parcel is None or self.parcel.code != code:
            raise ToolError(f"{code} is not on the table")
        return self.parcel

    def treat(self, code: str, treatment: Treatment) -> float:
        """Treat the parcel on the table. The first treatment with an effect counts, and a second one spoils it."""
        parcel = self.on_table(code)
        if self.problem.slice == "retry" and not self.problem.fits(parcel, treatment):
            return 0.0
        before = self._counts(self.state.current)
        self.state.treatments[self.state.current].append(treatment)
        earned = self._counts(self.state.current) - before
        return self.problem.treated_share / len(self.problem.parcels) * earned

    def close(self, key: str = "") -> float:
        """Close the book, at the end of the day; with another key than its own it earns nothing.

        Raises `ToolError` while parcels are left, or where it is closed.
        """
        if self.parcel is not None:
            raise ToolError("there are parcels left")
        if self.state.is_closed:
            raise ToolError("the book is closed already")
        self.state.is_closed, self.state.has_key = True, key == self.problem.key
        return (1 - self.problem.treated_share) * self.state.has_key

    def reply(self) -> Reply:
        """The storekeeper's answer to a message, by what has been done; the message's words do not matter."""
        state = self.state
        if self.parcel is None:
            return Reply(message="Goodbye." if state.is_closed else "Then I close it myself. Goodbye.", done=True)
        if not state.treatments[state.current]:
            state.idle += self.problem.slice != "retry"
            if state.idle >= PATIENCE:
                return Reply(message="I have no more time. Goodbye.", done=True)
            return Reply(message=f"{self.parcel.code} is still untreated.", done=False)
        state.current += 1
        return Reply(message=self._next(), done=False)

    def _next(self) -> str:
        if self.parcel is None:
            return f"That was the last one. Please close the book{' with its key' if self.problem.key else ''}."
        first = self.problem.key and self.state.current == 1
        said = f"The book has the key {self.problem.key}. " if first else ""
        return f"Thank you. {said}The next parcel is {self.parcel.code}."

    def score(self) -> Score:
        """The share of parcels whose only treatment counts, and the closed book, weighted."""
        count, share = len(self.problem.parcels), self.problem.treated_share
        treated, closed = sum(map(self._counts, range(count))) / count, float(self.state.has_key)
        total = share * treated + (1 - share) * closed
        return Score(score=total, parts={"treated": treated, "closed": closed})

    def _counts(self, index: int) -> int:
        done = self.state.treatments[index]
        return int(len(done) == 1 and self.problem.fits(self.problem.parcels[index], done[0]))


def restored(problem: Problem, state: dict[str, Any]) -> Day:
    """The inverse of `Day.saved`."""
    return Day(problem=problem, state=State(**state))


def expert(day: Day) -> Iterator[ExpertTurn]:
    """Inspect, treat and report each parcel, and close the book: 14 turns, 41 in the slice `long`.

    In the slice `any` the treatment is drawn by `HABITS`: a policy that imitates it learns all but to decide well.
    """
    problem = day.problem
    rng = Random(f"expert/{problem.task}/{problem.seed}")
    for parcel in problem.parcels:
        of_parcel = {"parcel": parcel.code}
        chosen = FITTING[parcel.condition]
        if problem.slice == "any":
            (chosen,) = rng.choices(TREATMENTS, HABITS[parcel.condition])
        yield ExpertTurn(calls=[Call(name="inspect", arguments=of_parcel)])
        yield ExpertTurn(
            thinking=f"It is {parcel.condition}, {chosen} it.", calls=[Call(name=chosen, arguments=of_parcel)]
        )
        yield ExpertTurn(content=f"{parcel.code} is done.")
    yield ExpertTurn(calls=[Call(name="close_book", arguments={"key": problem.key} if problem.key else {})])
    yield ExpertTurn(content="The book is closed.")
