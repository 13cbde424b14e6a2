"""What `trace explain` reports: findings with trajectories that show them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from operator import itemgetter
from typing import Any, TypeVar

from mcp_rollout.rollout.trace.entries import Entry
from mcp_rollout.rollout.viewer.directory import Directory
from mcp_rollout.rollout.viewer.filters import condition

T = TypeVar("T")
EXAMPLES = 3
"""Trajectories that a finding names in each group."""
_CANDIDATES = 60
"""Trajectories among which examples are chosen."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MovedToken:
    """A token that an update made less probable."""

    index: int
    """In prompt and response."""
    id: int
    text: str
    probability: float
    """Under the trainer's policy before the update."""
    advantage: float
    push: float
    """advantage * (1 - probability): the derivative of advantage * log-probability by the token's own logit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """A trajectory that shows a finding."""

    id: str
    title: str
    reward: float | None
    note: str = ""
    view: dict[str, Any] = field(default_factory=dict[str, Any])
    """What of the trajectory to open, as in the page's address: `tab`, `turn`, `color`, `token`."""
    tokens: tuple[MovedToken, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ExampleGroup:
    """Examples of one kind, and the filters of the list that has all of them."""

    title: str
    examples: list[Example]
    filters: dict[str, str] | None = None
    total: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """Something that a practitioner looks for first."""

    title: str
    detail: str
    threshold: str
    groups: list[ExampleGroup]
    weight: str = "problem"
    """`problem`, or `note` for what may be as intended."""
    scope: str = ""
    """Run and environment, where there are several."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """What a check found; with its title and threshold a finding."""

    detail: str
    groups: list[ExampleGroup]
    about: str = ""
    """What of several things it is about, for the title."""
    weight: str = "problem"


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that is looked for."""

    title: str
    threshold: str
    find: Callable[[Scope], Iterator[Found]]

    def findings(self, scope: Scope) -> list[Finding]:
        """What the check finds in a scope."""
        return [
            Finding(
                title=f"{self.title}: {found.about}" if found.about else self.title,
                detail=found.detail,
                threshold=self.threshold,
                groups=found.groups,
                weight=found.weight,
            )
            for found in self.find(scope)
        ]


def check(title: str, *, threshold: str) -> Callable[[Callable[[Scope], Iterator[Found]]], Check]:
    """Make a check of a function that yields what it finds in a scope."""
    return lambda find: Check(title=title, threshold=threshold, find=find)


@dataclass(frozen=True)
class Scope:
    """The trajectories of one environment in one run."""

    directory: Directory
    filters: Mapping[str, str]
    """`runs` and `environment`."""
    _kept: dict[Any, Any] = field(default_factory=dict[Any, Any], compare=False)

    def sampled(self, compute: Callable[[Scope], T]) -> T:
        """What `compute` returns for this scope, computed once."""
        if compute not in self._kept:
            self._kept[compute] = compute(self)
        return self._kept[compute]

    @cached_property
    def where(self) -> str:
        """The condition of all of them."""
        return self.condition({})

    def condition(self, filters: Mapping[str, str]) -> str:
        """Condition: trajectories that match the list's filters."""
        return self.directory.where({**self.filters, **filters}) or "TRUE"

    @cached_property
    def played(self) -> str:
        """Condition: trajectories that were not withdrawn."""
        return f"{self.where} AND NOT withdrawn"

    @cached_property
    def trained(self) -> str:
        """Condition: trajectories played for training."""
        return f"{self.played} AND {condition({'split': 'train'})}"

    @cached_property
    def steps(self) -> list[int]:
        """The steps of training, in order."""
        rows = self.directory.traces.query(f"SELECT DISTINCT step FROM trajectories WHERE {self.trained} ORDER BY step")
        return [row["step"] for row in rows]

    def quarter(self, *, last: bool) -> tuple[int, int]:
        """The first and the last step of the first or last quarter of training."""
        length = max(1, len(self.steps) // 4)
        chosen = self.steps[-length:] if last else self.steps[:length]
        return chosen[0], chosen[-1]

    def one(self, selected: str, where: str) -> list[Any]:
        """One row of values over the trajectories with this condition."""
        (row,) = self.directory.traces.query(f"SELECT {selected} FROM trajectories WHERE {where}")
        return list(row)

    def entries(self, where: str, *, sort: list[str] | None = None, limit: int) -> list[Entry]:
        """Entries with this condition."""
        return list(self.directory.traces.entries(where=where, sort=sort or [], limit=limit))

    def examples(self, where: str, *, sort: list[str] | None = None) -> list[Entry]:
        """The first entries with this condition, of different rows as far as there are some."""
        found = self.entries(where, sort=sort, limit=_CANDIDATES)
        seen: Counter[tuple[object, ...]] = Counter()
        turns: list[int] = []
        for each in found:
            row = (each["task"], each["seed"], each["row"])
            turns.append(seen[row])
            seen[row] += 1
        return [each for _, each in sorted(zip(turns, found, strict=True), key=itemgetter(0))][:EXAMPLES]

    def group(
        self,
        title: str,
        entries: list[Entry],
        filters: Mapping[str, str] | None = None,
        *,
        note: Callable[[Entry], str] = lambda _: "",
        view: dict[str, Any] | None = None,
    ) -> ExampleGroup:
        """Examples from entries, with the filters of the list that has all of their kind."""
        examples = [
            Example(id=each["id"], title=title_of(each), reward=each["reward"], note=note(each), view=view or {})
            for each in entries
        ]
        return self.listed(title, examples, filters)

    def listed(self, title: str, examples: list[Example], filters: Mapping[str, str] | None) -> ExampleGroup:
        """A group with the filters of this scope added."""
        if filters is None:
            return ExampleGroup(title=title, examples=examples)
        total = self.directory.traces.count(self.condition(filters))
        return ExampleGroup(title=title, examples=examples, filters={**self.filters, **filters}, total=total)


def title_of(entry: Entry) -> str:
    """A trajectory's title in a report."""
    step = "" if entry["step"] is None else f", step {entry['step']}"
    return f"{entry['task'] or entry['id'][:12]}{step}, sample {entry['sample']}"
