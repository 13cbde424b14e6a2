"""Where the program `mcp-rollout` starts: signals end it at once while its modules are imported."""

from __future__ import annotations

import os
import signal
from importlib import import_module
from types import FrameType


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
    import_module("mcp_rollout.rollout.cli.output")  # which `commands` begins with
    from mcp_rollout.rollout.cli import main as commands

    signal.signal(signal.SIGINT, handlers[signal.SIGINT])  # that of SIGTERM is set by `commands`
    commands()


if __name__ == "__main__":
    main()
