"""The files of a trace directory: journals, and the archives that replace them. For a moment there are both."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import structlog

from mcp_rollout.gateway.errors import ConfigError

log = structlog.get_logger(__name__)

JOURNAL_SUFFIX = ".jsonl"
ARCHIVE_SUFFIX = JOURNAL_SUFFIX + ".zst"
ARCHIVE_END, ARCHIVE_MARK = struct.Struct("<IBI"), 0x8F92EAB1
"""An archive's last bytes: its number of frames, flags, and the mark of zstd's seekable format."""


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
    return journal.with_name(journal.name + ".zst")


def is_whole(path: Path) -> bool:
    """Whether a file ends as archives do."""
    # Asked for each archive at each look at a directory, for which reading its table would be too slow.
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - ARCHIVE_END.size))
        return file.read().endswith(ARCHIVE_MARK.to_bytes(4, "little"))


def no_records(count: int, first: str) -> str:
    """What is wrong with a journal of which lines are not records; `first` is the first one's problem."""
    return first if count == 1 else f"{count} lines are not records; {first}"


def file_of(journal: Path, skipped: Skipped) -> Path | None:
    """The file with a journal's traces: its archive if there is a whole one, else the journal; None without either.

    What is not a whole archive, or not a file that can be read, is logged.
    """
    archive = archive_of(journal)
    if _can_be_read(archive, skipped):
        if is_whole(archive):
            return archive
        skipped.log(archive, "is not a whole archive")
    return journal if _can_be_read(journal, skipped) else None


def _can_be_read(path: Path, skipped: Skipped) -> bool:
    if path.is_file() and os.access(path, os.R_OK):
        return True
    if path.exists():
        skipped.log(path, "is not a file that can be read")
    return False


def files_of(directory: Path, skipped: Skipped) -> list[Path]:
    """The files with the traces of a directory and its sub-directories, in the order of their names."""
    found = (file_of(journal, skipped) for journal in journals_of(directory, recursive=True))
    return [path for path in found if path is not None]


def journals_of(directory: str | Path, *, recursive: bool = False) -> list[Path]:
    """The journals of a directory, archived ones too, in the order of their names; `recursive` adds sub-directories."""
    directory = Path(directory)
    find = directory.rglob if recursive else directory.glob
    archived = {path.with_suffix("") for path in find(f"*{ARCHIVE_SUFFIX}")}
    return sorted({*find(f"*{JOURNAL_SUFFIX}"), *archived})
