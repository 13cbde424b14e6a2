"""Recognise the Python program in a server's entry: its interpreter, its main module, and where its arguments begin."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mcp_rollout.gateway.config.models import ServerConfig

_INTERPRETER = re.compile(r"python(\d+(\.\d+)?)?")
_OPTIONS = frozenset("-I -S -E -s -u -B -O -OO -P -b -q".split())
_OPTIONS_WITH_VALUE = frozenset(("-X", "-W"))


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
    """The program of `python -m MODULE` or `python SCRIPT`; None for all others."""
    command = config.command or ""
    path = shutil.which(str(Path(config.cwd or ".") / command) if "/" in command else command, path=env.get("PATH"))
    if path is None or not _INTERPRETER.fullmatch(Path(path).name):
        return None
    args, at = config.args, 0
    while at < len(args) and args[at].startswith("-") and args[at] != "-m":
        if args[at] not in _OPTIONS | _OPTIONS_WITH_VALUE:
            return None
        at += 2 if args[at] in _OPTIONS_WITH_VALUE else 1
    words = 2 if args[at : at + 1] == ("-m",) else 1
    if len(args) < at + words:
        return None
    return PythonProgram((path, *args[:at]), args[at : at + words], at + words)
