"""Lines of journals and archives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mcp_rollout.rollout.extras import needed
from mcp_rollout.rollout.trace.files import ARCHIVE_SUFFIX


def archived(path: Path) -> Any:
    """A `rollout.trace.archive.Archive`. Raises as that one, and ConfigError where pyarrow is not installed."""
    with needed("parquet", "an archive", file=str(path)):
        from mcp_rollout.rollout.trace.archive import Archive
    return Archive(path)


def lines_of(path: Path, start: int = 0) -> Iterator[tuple[int, bytes]]:
    """The lines of a journal or an archive from a byte of the journal on, each with the position of its first byte.

    A last line without a newline is being written, or its writer was killed.

    Raises:
        TornArchive: the file is not a whole archive, or a part of it is damaged.
        OSError: the file cannot be read.
    """
    if path.name.endswith(ARCHIVE_SUFFIX):
        yield from archived(path).lines(start)
        return
    with path.open("rb") as file:
        position = file.seek(start)
        for line in file:
            yield position, line
            position += len(line)
