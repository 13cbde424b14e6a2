"""Refusals of configurations as tables: a row is data, and `refuse` applies the rows that hold.

A row is there for a run that the trainer would accept, and that loses training data, trains on wrong gradients or never
begins. What a trainer refuses by itself needs none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import structlog

from mcp_rollout.gateway.errors import ConfigError, Faults, raise_all

log = structlog.get_logger(__name__)


class Configured(Protocol):
    """What the conditions of a table look at: the merged configuration of a run, and maybe one of its environments."""

    def place(self, key: str) -> tuple[str | None, str]:
        """The file that has the value of a key, and the key as it is spelled there; a command line has no file."""
        ...

    def words(self, key: str) -> Mapping[str, object]:
        """What the sentences of a row may name in braces, such as the key's `value`."""
        ...


Run = TypeVar("Run", bound=Configured)


@dataclass(frozen=True, kw_only=True)
class Refusal(Generic[Run]):
    """One row. Its test fails when the trainer refuses such a run itself: then the row can go."""

    when: Callable[[Run], object]
    key: str
    problem: str
    remedy: str
    seen: str = ""
    """The release of the trainer that accepts such a run; empty where the reason is in this package."""
    only_warns: Callable[[Run], object] = lambda _: False
    """Whether the run is warned of and goes on."""


def refuse(table: Iterable[Refusal[Run]], run: Run) -> None:
    """Apply the rows of a table whose conditions hold.

    Raises:
        ConfigError: those that do not only warn, each with its key and remedy.
    """
    faults = Faults()
    for row in table:
        if not row.when(run):
            continue
        (file, key), words = run.place(row.key), run.words(row.key)
        problem, remedy = row.problem.format_map(words), row.remedy.format_map(words)
        if row.only_warns(run):
            log.warning(problem, file=file, key=key, remedy=remedy)
        else:
            faults.append(ConfigError(problem, file=file, key=key, remedy=remedy))
    raise_all(faults)
