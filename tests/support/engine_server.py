"""An inference server of an environment of its own, on this machine's CPU."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
STARTING_S, ENDING_S = 300.0, 30.0


@contextlib.contextmanager
def running(command: Callable[[int], list[str]], home: Path, environ: Mapping[str, str] = {}) -> Iterator[str]:
    """The address of a server as long as the block lasts.

    Args:
        command: what starts it on a port.
        home: a directory for what it prints, `output.txt`.

    Raises:
        RuntimeError: it ended, or did not answer in time; the message ends with what it printed.
    """
    port = _free_port()
    address = f"http://127.0.0.1:{port}"
    home.mkdir(parents=True, exist_ok=True)
    with open(home / "output.txt", "wb") as output:
        server = subprocess.Popen(
            command(port),
            cwd=ROOT,
            env={**os.environ, **environ},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        deadline = time.monotonic() + STARTING_S
        while not _is_healthy(address):
            if server.poll() is not None or time.monotonic() > deadline:
                printed = (home / "output.txt").read_text(errors="replace")
                raise RuntimeError(f"the server did not start (status {server.poll()}):\n{printed[-4000:]}")
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(0.5)
        yield address
    finally:
        _end(server)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _is_healthy(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/health", timeout=30):
            return True
    except (urllib.error.URLError, OSError):
        return False


def _end(server: subprocess.Popen[bytes]) -> None:
    """A server's processes end with the one that started them, but not at once."""
    family = []
    with contextlib.suppress(psutil.NoSuchProcess):
        family = psutil.Process(server.pid).children(recursive=True)
    server.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        server.wait(ENDING_S)
    server.kill()
    server.wait(ENDING_S)
    for process in psutil.wait_procs(family, timeout=ENDING_S)[1]:
        process.kill()
