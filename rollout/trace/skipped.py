"""Warnings about files of a trace directory that cannot be read, whole or in part: one for each file."""

from __future__ import annotations

from pathlib import Path

import structlog

log = structlog.get_logger(__name__)


class Skipped:
    """Logs what a reader skips, once for each file however often it reads it."""

    def __init__(self) -> None:
        self._logged: set[Path] = set()

    def log(self, path: Path, problem: object) -> None:
        """Log that a file, or a part of it, was skipped, unless that was logged before."""
        if path not in self._logged:
            self._logged.add(path)
            log.warning("skipped", file=str(path), problem=str(problem).splitlines()[0])


def no_records(count: int, first: str) -> str:
    """What is wrong with a journal of which lines are no records; `first` is the first one's problem."""
    return first if count == 1 else f"{count} lines are no records; {first}"
