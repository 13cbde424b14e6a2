"""Programs that listen, and the descriptors for sessions with them. Standard library only, as `rollout.bench.costs`."""

from __future__ import annotations

import resource
import socket
import subprocess
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager

_START_S = 120.0
SPARE_DESCRIPTORS = 300
"""What a process opens besides its sessions."""


def missing_descriptors(sessions: int) -> str | None:
    """Raises the soft limit of open files as far as needed; returns a message if the hard limit is too low.

    Args:
        sessions: Sessions that each hold one connection in this process.
    """
    needed = sessions + SPARE_DESCRIPTORS
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


@contextmanager
def listening(argv: Sequence[str]) -> Generator[tuple[subprocess.Popen[bytes], int]]:
    """Runs `argv` with a free port as its last argument, from the moment that it listens there."""
    # Programs take a port, not a socket. Should another program take it in between, the start fails below.
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen([*argv, str(port)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        end = time.monotonic() + _START_S
        while not _listens(port):
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"the server did not start: {' '.join(argv)}")
            time.sleep(0.05)
        yield process, port
    finally:
        process.kill()
        process.wait()


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 0.2).close()
    except OSError:
        return False
    return True
