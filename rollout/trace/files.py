"""The files of a trace directory, and reading them one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from rollout.trace.archive import SUFFIX, TornArchive, archive_of, is_whole, read_archive
from rollout.trace.journal import JOURNAL_SUFFIX, NotARecord, from_json, lines_of
from rollout.trace.record import Trace

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

        An archive that is not whole is logged.
        """
        if self.archive.exists():
            if is_whole(self.archive):
                return self.archive
            self.skipped.log(self.archive, "is not a whole archive")
        return self.journal if self.journal.exists() else None

    def read(self) -> Iterator[Trace]:
        """Read the traces in the order of writing; what is torn is logged and skipped.

        Raises:
            ConfigError: a record is of another version.
        """
        path = self.path
        if path == self.journal:
            try:
                yield from self._read_journal()
                return
            except FileNotFoundError:  # archived since the check; nothing was yielded, since opening comes first
                path = self.path
        try:
            if path is not None:
                yield from read_archive(path)
        except TornArchive as error:
            assert path is not None
            self.skipped.log(path, error)

    def _read_journal(self) -> Iterator[Trace]:
        problems: list[NotARecord] = []
        for position, line in lines_of(self.journal):
            try:
                yield from_json(line, where=f"{self.journal}:{position}")
            except NotARecord as error:
                problems.append(error)
        if problems:
            self.skipped.log(self.journal, no_records(len(problems), str(problems[0])))


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
    journals |= {path.with_name(path.name.removesuffix(SUFFIX) + JOURNAL_SUFFIX) for path in find(f"*{SUFFIX}")}
    return [Source(path, skipped) for path in sorted(journals)]


def read_traces(directory: str | Path, *, recursive: bool = False) -> Iterator[Trace]:
    """Read all traces of a directory: files in the order of their names, records in the order of writing.

    What is torn is logged and skipped: a partial last line, a line that is not a record, an incomplete archive.

    Raises:
        ConfigError: a record is of another version.
    """
    for source in sources(directory, recursive=recursive):
        yield from source.read()
