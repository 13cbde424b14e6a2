"""Run a server as a program of its own, with enough open files. Standard library only, for other environments too."""

from __future__ import annotations

import resource
import socket
import subprocess
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

_START_S = 120.0
_STARTS = 3
"""Of one server, with another port each time."""
_SPARE_DESCRIPTORS = 300
"""What a process opens besides its sessions."""


def missing_descriptors(sessions: int) -> str | None:
    """Raises the soft limit of open files as far as needed; returns a message if the hard limit is too low.

    Args:
        sessions: Sessions that each hold one connection in this process.
    """
    needed = sessions + _SPARE_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= needed or soft == resource.RLIM_INFINITY:
        return None
    if hard != resource.RLIM_INFINITY and hard < needed:
        return (
            f"{sessions} sessions over HTTP need {needed} open files in one process, and this one may open {hard}: "
            f"raise the limit (ulimit -Hn {needed}, or LimitNOFILE of the service), or take fewer sessions"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    return None


def sweepers_of(worker: int) -> list[int]:
    """The sweepers of a process's gateways, which are not its children."""
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if words[3:4] and words[3].endswith(b"/sweeper.py") and words[4] == str(worker).encode():
                found.append(int(path.parent.name))
    return found


@contextmanager
def listening(argv: Sequence[str]) -> Generator[tuple[subprocess.Popen[bytes], int]]:
    """Runs `argv` with a free port as its last argument, from the moment that it listens there."""
    for attempt in range(_STARTS):
        port = free_port()
        process = subprocess.Popen([*argv, str(port)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        try:
            end, listens = time.monotonic() + _START_S, False
            while process.poll() is None and not listens and time.monotonic() < end:
                time.sleep(0.05)
                listens = _listens(port)
            if process.poll() is None and listens:
                yield process, port
                return
            if attempt == _STARTS - 1:
                raise RuntimeError(f"the server did not start: {' '.join(argv)}")
        finally:
            process.kill()
            process.wait()


def free_port() -> int:
    """A port that nothing listens at. Programs take a port, not a socket: another one may take it in between."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 0.2).close()
    except OSError:
        return False
    return True
