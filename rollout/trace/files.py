"""The files of a trace directory: journals, and the archives that replace them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from gateway.errors import ConfigError

log = structlog.get_logger(__name__)

JOURNAL_SUFFIX = ".jsonl"
ARCHIVE_SUFFIX = ".traces.parquet"


class TornArchive(ConfigError):
    """A file is not a whole archive. No writer leaves such a file; a copy that was interrupted may."""


class Skipped:
    """Logs what a reader skips, once for each file however often it reads it."""

    def __init__(self) -> None:
        self._logged: set[Path] = set()

    def log(self, path: Path, problem: object) -> None:
        """Log that a file, or a part of it, was skipped, unless that was logged before."""
        if path not in self._logged:
            self._logged.add(path)
            log.warning("skipped", file=str(path), problem=str(problem).splitlines()[0])


def archive_of(journal: Path) -> Path:
    """The archive that replaces a journal."""
    return journal.with_name(journal.name.removesuffix(JOURNAL_SUFFIX) + ARCHIVE_SUFFIX)


def is_whole(path: Path) -> bool:
    """Whether a file ends as Parquet files do: with the length of its footer and a mark."""
    # Asked for each archive at each look at a directory, for which opening it as Parquet would be too slow.
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - 8))
        tail = file.read()
    return len(tail) == 8 and tail[4:] == b"PAR1" and int.from_bytes(tail[:4], "little") + 12 <= end


def no_records(count: int, first: str) -> str:
    """What is wrong with a journal of which lines are not records; `first` is the first one's problem."""
    return first if count == 1 else f"{count} lines are not records; {first}"


@dataclass(frozen=True, slots=True)
class Source:
    """The traces of one process, or a part of them: a journal, its archive, or for a moment both."""

    journal: Path
    """The journal's path, whether it still exists or not."""
    skipped: Skipped = field(default_factory=Skipped, compare=False)

    @property
    def archive(self) -> Path:
        return archive_of(self.journal)

    @property
    def path(self) -> Path | None:
        """The file with the traces: the archive if there is a whole one, else the journal; None without either.

        What is not a whole archive, or not a file that can be read, is logged.
        """
        if self._can_be_read(self.archive):
            if is_whole(self.archive):
                return self.archive
            self.skipped.log(self.archive, "is not a whole archive")
        return self.journal if self._can_be_read(self.journal) else None

    def _can_be_read(self, path: Path) -> bool:
        if path.is_file() and os.access(path, os.R_OK):
            return True
        if path.exists():
            self.skipped.log(path, "is not a file that can be read")
        return False


def sources(directory: str | Path, *, recursive: bool = False, skipped: Skipped | None = None) -> list[Source]:
    """The sources of a directory in the order of their names.

    Args:
        directory: of the traces.
        recursive: whether to look into its sub-directories.
        skipped: logs what cannot be read; one of its own by default.
    """
    skipped = skipped or Skipped()
    directory = Path(directory)
    find = directory.rglob if recursive else directory.glob
    journals = set(find(f"*{JOURNAL_SUFFIX}"))
    journals |= {
        path.with_name(path.name.removesuffix(ARCHIVE_SUFFIX) + JOURNAL_SUFFIX) for path in find(f"*{ARCHIVE_SUFFIX}")
    }
    return [Source(path, skipped) for path in sorted(journals)]
