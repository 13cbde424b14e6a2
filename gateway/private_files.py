"""Files that only this user may read, whatever the umask: traces, cassettes and exports hold what tools returned."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def private(path: str | Path, flags: int) -> int:
    """Open a file that only this user may read if it is made; an `opener` for `open`.

    A file that is to be overwritten is made anew, so that it is never another user's, nor behind a link.
    """
    if flags & os.O_TRUNC:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        flags |= os.O_EXCL
    return os.open(path, flags, 0o600)


def write_private(path: Path, text: str) -> None:
    """`Path.write_text`, for such a file."""
    with open(path, "w", encoding="utf-8", opener=private) as file:
        file.write(text)


def make_private(directory: Path) -> None:
    """Make a directory that only this user may enter, and its missing parents; an existing one stays as it is."""
    if not directory.is_dir():
        if directory.parent != directory:
            make_private(directory.parent)
        directory.mkdir(mode=0o700, exist_ok=True)
