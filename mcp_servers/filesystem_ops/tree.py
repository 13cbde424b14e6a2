"""A tree of text files as data: a dict from POSIX path below the root to text, without empty directories."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

Tree = dict[str, str]

MAX_BYTES = 1 << 20
"""Bytes that are read of a file; the files of a task are far smaller."""
MAX_FILES = 5000


def lay_out(root: Path, tree: Mapping[str, str]) -> None:
    """Writes the tree into the directory and removes everything else."""
    clear(root)
    for path, text in tree.items():
        place = root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8", newline="\n")


def clear(root: Path) -> None:
    """Removes everything in the directory. Links are removed, not followed."""
    with os.scandir(root) as entries:
        for entry in list(entries):
            if entry.is_dir(follow_symlinks=False):
                # Not `shutil.rmtree`, which recurses: a policy may nest directories deeper than the stack of Python.
                subprocess.run(["rm", "-rf", "--", entry.path], check=True)
            else:
                os.unlink(entry.path)


def read(root: Path) -> Tree:
    """Reads at most `MAX_FILES` files. A link is not followed: it reads as text that no task asks for."""
    found: Tree = {}
    ahead = [root]  # a stack of our own: `os.walk` recurses in Python 3.11
    while ahead:
        directory = ahead.pop()
        try:
            with os.scandir(directory) as entries:
                here = sorted(entries, key=lambda entry: entry.name)
        except OSError:
            continue
        ahead += [directory / entry.name for entry in reversed(here) if entry.is_dir(follow_symlinks=False)]
        for entry in here:
            if entry.is_dir():
                continue
            if len(found) >= MAX_FILES:
                return found
            place = directory / entry.name
            found[place.relative_to(root).as_posix()] = _text(place)
    return found


def same(one: str | None, other: str | None) -> bool:
    """Whether two files are equal apart from line ends and trailing white space; None is a missing file."""
    if one is None or other is None:
        return one is other
    return one.replace("\r\n", "\n").rstrip() == other.replace("\r\n", "\n").rstrip()


def _text(place: Path) -> str:
    if not place.is_file() or place.is_symlink():
        return "\0"
    with place.open("rb") as file:
        return file.read(MAX_BYTES).decode("utf-8", errors="replace")
