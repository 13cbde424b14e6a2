"""Recognise the Python program in a server's entry: its interpreter, its main module, and where its arguments begin."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mcp_rollout.gateway.config.models import ServerConfig

_INTERPRETER = re.compile(r"python(\d+(\.\d+)?)?")
_OPTIONS = frozenset("-I -S -E -s -u -B -O -OO -P -b -q".split())
_OPTIONS_WITH_VALUE = frozenset(("-X", "-W"))
_LONG_PATH = re.compile(rb"""^'''exec' (?:"([^"]+)"|(\S+)) "\$0" "\$@"$""", re.MULTILINE)
"""Second line of a console script whose interpreter's path is too long, or has spaces, for a first line."""
_HEAD_BYTES = 4096


@dataclass(frozen=True, slots=True)
class PythonProgram:
    """How an entry starts Python."""

    interpreter: tuple[str, ...]
    """The interpreter's path and its options."""
    main: tuple[str, ...]
    """`-m` and a module, or a script's path."""
    skipped: int
    """How many of the entry's `args` come before the program's own arguments."""


def python_program(config: ServerConfig, env: Mapping[str, str]) -> PythonProgram | None:
    """The program of `python -m MODULE`, `python SCRIPT` or a console script; None for all others."""
    command = config.command or ""
    path = shutil.which(str(Path(config.cwd or ".") / command) if "/" in command else command, path=env.get("PATH"))
    if path is None:
        return None
    if not _INTERPRETER.fullmatch(Path(path).name):
        interpreter = _of_script(Path(path), env)
        return PythonProgram(interpreter, (path,), 0) if interpreter is not None else None
    args, at = config.args, 0
    while at < len(args) and args[at].startswith("-") and args[at] != "-m":
        if args[at] not in _OPTIONS | _OPTIONS_WITH_VALUE:
            return None
        at += 2 if args[at] in _OPTIONS_WITH_VALUE else 1
    words = 2 if args[at : at + 1] == ("-m",) else 1
    if len(args) < at + words:
        return None
    return PythonProgram((path, *args[:at]), args[at : at + words], at + words)


def _of_script(path: Path, env: Mapping[str, str]) -> tuple[str, ...] | None:
    """The interpreter of a console script, as its first line names it."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return None
    if not head.startswith(b"#!"):
        return None
    if found := _LONG_PATH.search(head):
        words = [(found[1] or found[2]).decode()]
    else:
        words = shlex.split(head.splitlines()[0][2:].decode("utf-8", "replace"))
    if len(words) == 2 and Path(words[0]).name == "env":
        located = shutil.which(words[1], path=env.get("PATH"))
        words = [located] if located is not None else words
    if not words or not _INTERPRETER.fullmatch(Path(words[0]).name) or not set(words[1:]) <= _OPTIONS:
        return None
    return tuple(words)
