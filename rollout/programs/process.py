"""A program's directory and processes: both end with its trajectory, whatever the program does, and with the worker."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import structlog

from mcp_rollout.gateway.config.models import LeaseDirConfig
from mcp_rollout.gateway.config.variables import child_env
from mcp_rollout.gateway.leases.janitor import OWNER, Janitor
from mcp_rollout.gateway.leases.sweeper import end, remove
from mcp_rollout.gateway.transport.guard import exhausted, guarded, rlimits
from mcp_rollout.rollout.errors import AgentError

log = structlog.get_logger(__name__)

_TAIL_BYTES = 4096
_LAST_WORDS_S = 0.5
"""How long the output of a program that has ended may take to arrive: a child of its may hold the pipe."""
_KILL_S = 5.0
"""How long the kernel may take to end processes that got SIGKILL."""
_SIGNALS = {each.value: each.name for each in signal.Signals}
_SUPERVISOR = Path(__file__).with_name("supervisor.py")


class Homes:
    """The directories of a worker's programs. Close it after the last of them."""

    def __init__(self) -> None:
        self._opening = anyio.Lock()
        self._janitor: Janitor | None = None

    @asynccontextmanager
    async def home(self) -> AsyncGenerator[tuple[Path, str]]:
        """A directory for the length of the block, and a mark; processes with it are gone afterwards."""
        async with self._opening:
            if self._janitor is None:
                # By hand: `close` leaves it, in the task of the last program.
                self._janitor = await Janitor(LeaseDirConfig()).__aenter__()
        directory, mark = await self._janitor.directory(), self._janitor.mark()
        try:
            yield directory, mark
        finally:
            with anyio.CancelScope(shield=True):  # both are bounded
                await anyio.to_thread.run_sync(end, {mark.encode()}.__contains__)
                await anyio.to_thread.run_sync(remove, str(directory))

    async def close(self) -> None:
        if self._janitor is not None:
            await self._janitor.__aexit__(None, None, None)


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of each process, as of a server's, of their number, and the time between SIGTERM and SIGKILL."""

    memory_mb: int | None
    cpu_s: int | None
    processes: int
    close_s: float


async def run_process(
    command: Sequence[str],
    home: Path,
    mark: str,
    limits: Limits,
    *,
    files: Mapping[str, str],
    env: Mapping[str, str],
) -> tuple[str, bool]:
    """Run a program in its directory until it ends; when cancelled, SIGTERM for its group, then SIGKILL for its tree.

    Returns:
        How it ended with the end of what it wrote, empty for status 0; and whether a signal ended it.

    Raises:
        AgentError: it cannot be started.
    """
    await anyio.to_thread.run_sync(_write, home, files)
    argv = list(command)
    if sys.platform == "linux":
        supervisor = (sys.executable, "-I", "-S", str(_SUPERVISOR), str(os.getpid()))
        bounds = (str(limits.close_s), str(limits.processes))
        argv = [*supervisor, *bounds, *guarded(argv, rlimits(limits.memory_mb, limits.cpu_s), parent=0)]
    try:
        transport, watched = await asyncio.get_running_loop().subprocess_exec(
            _Watched,
            *argv,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            cwd=home,
            env=child_env({"HOME": str(home), "PWD": str(home), "NO_PROXY": "127.0.0.1", **env, OWNER: mark}),
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise AgentError(f"the program cannot be started: {error}") from error
    try:
        await watched.exited.wait()
        with anyio.move_on_after(_LAST_WORDS_S):
            await watched.said_all.wait()
    finally:
        with anyio.CancelScope(shield=True):
            await _end(transport.get_pid(), watched, limits.close_s)
        status = transport.get_returncode()
        transport.close()
    status = -signal.SIGKILL if status is None else status
    if status == 0:
        return "", False
    # The supervisor, a shell and a container's client report the signal of what they ran as 128 and more.
    killed_by = _SIGNALS.get(-status if status < 0 else status - 128)
    how = f"was killed by {killed_by}" if killed_by else f"exited with status {status}"
    lines = [line.strip() for line in watched.tail.decode(errors="replace").splitlines()]
    told = (exhausted(limits.memory_mb, limits.cpu_s, status, bytes(watched.tail)), " | ".join(filter(None, lines)))
    return ": ".join((f"the program {how}", *filter(None, told))), killed_by is not None


def _write(directory: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


class _Watched(asyncio.SubprocessProtocol):
    """A program's end, and the end of its output. Not asyncio's own: that one's `wait` waits for the pipes, too."""

    def __init__(self) -> None:
        self.exited, self.said_all, self.tail = anyio.Event(), anyio.Event(), bytearray()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self.tail += data
        del self.tail[:-_TAIL_BYTES]

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 1:
            self.said_all.set()

    def process_exited(self) -> None:
        self.exited.set()


async def _end(pid: int, watched: _Watched, close_s: float) -> None:
    """End the supervisor, which ends its program; where there is none, the program's group."""
    for number, seconds in ((signal.SIGTERM, close_s + _KILL_S), (signal.SIGKILL, _KILL_S)):
        if watched.exited.is_set() and number is signal.SIGTERM:
            continue
        try:
            os.killpg(pid, number)
        except (ProcessLookupError, PermissionError):
            pass  # the group is empty
        with anyio.move_on_after(seconds):
            await watched.exited.wait()
    if not watched.exited.is_set():
        log.warning("program.not_reaped", pid=pid)
