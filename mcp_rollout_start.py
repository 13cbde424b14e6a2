"""Where mcp-rollout starts: after a look at whether its packages are its own.

The wheel has packages of general names, which a package of the user's can hide: a directory earlier on the module path.
This module has a name of its own, and imports none of them before they were looked at.
"""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import FrameType

_PACKAGES = ("gateway", "mcp_rollout", "mcp_servers", "mcp_wire", "rollout")
_HOME = Path(__file__).resolve().parent


class NameClash(ImportError):
    """Another package hides one of mcp-rollout's."""


def check_names() -> None:
    """Raises NameClash where a package that Python finds under one of our names is another one."""
    for name in _PACKAGES:
        spec = find_spec(name)
        found = [Path(each).resolve() for each in (spec and spec.submodule_search_locations) or ()]
        if found != [_HOME / name]:
            other = found[0] if found else spec.origin if spec else "nothing"
            raise NameClash(
                f"the package {name!r} of mcp-rollout ({_HOME / name}) is hidden by another one: {other}. Rename that "
                "one, or start where it is not on the module path: PYTHONPATH, or the working directory of `python -m`"
            )


def _end(_: int, __: FrameType | None) -> None:
    """End with the status of an interrupted command, as long as nothing has to be closed.

    Compiled code that imports run would make an error of its own of an exception.
    """
    os._exit(130)


def main() -> None:
    """The program `mcp-rollout`."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number, handler in handlers.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, _end)
    try:
        check_names()
    except NameClash as error:
        sys.stderr.write(f"error: {error}\n")
        raise SystemExit(2) from None
    import_module("rollout.cli.output")  # which `commands` begins with
    from rollout.cli import main as commands

    signal.signal(signal.SIGINT, handlers[signal.SIGINT])  # that of SIGTERM is set by `commands`
    commands()
