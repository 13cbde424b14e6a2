"""Files that only this user may read, whatever the umask: traces, cassettes and exports hold what tools returned."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from pathlib import Path
from uuid import uuid4


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
    """`Path.write_text`, for such a file, which appears whole or not at all."""
    with replacing(path) as partial, open(partial, "x", encoding="utf-8", opener=private) as file:
        file.write(text)


@contextlib.contextmanager
def replacing(path: Path) -> Generator[Path]:
    """A path beside this one to write to, which takes its place where the block raises nothing."""
    # A name of its own: processes and threads may write the same file at the same time.
    partial = path.with_name(f"{path.name}.{uuid4().hex}.partial")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def make_private(directory: Path) -> None:
    """Make a directory that only this user may enter, and its missing parents; an existing one stays as it is."""
    if not directory.is_dir():
        if directory.parent != directory:
            make_private(directory.parent)
        directory.mkdir(mode=0o700, exist_ok=True)
