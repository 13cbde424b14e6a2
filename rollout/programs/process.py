"""A program's directory and processes: both end with its trajectory, whatever the program does, and with the worker."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import anyio
import structlog

from gateway.config.models import LeaseDirConfig
from gateway.config.variables import child_env
from gateway.leases.janitor import OWNER, Janitor
from gateway.leases.sweeper import end, remove
from gateway.transport.guard import exhausted, guarded, rlimits
from rollout.errors import AgentError
from rollout.programs import same_home

log = structlog.get_logger(__name__)

_TAIL_BYTES = 4096
_LAST_WORDS_S = 0.5
"""How long the output of a program that has ended may take to arrive: a child of its may hold the pipe."""
_KILL_S = 5.0
"""How long the kernel may take to end a process that got SIGKILL."""
_PROBE_S = 10.0
_SAME = [sys.executable, "-I", "-S", str(same_home.__file__)]


@dataclass(frozen=True, slots=True)
class Home:
    """The directory of one program, which is its HOME and where it starts."""

    directory: Path
    path: str
    """As the program sees it: the same for all programs of this user, where the system allows that."""
    mark: str
    """In the environment of the program and of all that it starts."""


class Homes:
    """The directories of a worker's programs. Leave it after the last of them."""

    def __init__(self) -> None:
        self._exits = AsyncExitStack()
        self._opening = anyio.Lock()
        self._janitor: Janitor | None = None
        self._shown = ""
        """The path at which each program sees its directory; empty where directories keep their own."""

    @asynccontextmanager
    async def home(self) -> AsyncGenerator[Home]:
        """A directory for the length of the block. All processes with its mark are gone afterwards."""
        async with self._opening:
            janitor = self._janitor or await self._open()
        directory, mark = await janitor.directory(), janitor.mark()
        try:
            yield Home(directory, self._shown or str(directory), mark)
        finally:
            with anyio.CancelScope(shield=True):  # both are bounded
                await anyio.to_thread.run_sync(end, {mark.encode()}.__contains__)
                await anyio.to_thread.run_sync(remove, str(directory))

    async def _open(self) -> Janitor:
        # By hand: it is left by `close`, in the task of the last program.
        self._janitor = janitor = await self._exits.enter_async_context(Janitor(LeaseDirConfig()))
        made = await janitor.directory()
        self._shown = await anyio.to_thread.run_sync(_shown, made)
        if not self._shown:
            log.warning("programs.own_paths", reason="no mount namespaces", effect="prompts with paths differ")
        return janitor

    async def close(self) -> None:
        await self._exits.aclose()


@dataclass(frozen=True, slots=True)
class Exit:
    status: int
    """Exit status, or minus the signal."""
    tail: str
    """The end of what it wrote."""
    used_up: str = ""
    """The limit that ended it, as half a sentence; empty if none did."""

    @property
    def is_killed(self) -> bool:
        # A shell or a container's client reports the signal of what it ran.
        return self.status < 0 or self.status == 128 + signal.SIGKILL

    def __str__(self) -> str:
        how = f"exited with status {self.status}"
        if self.status < 0:
            how = f"was killed by {signal.Signals(-self.status).name}"
        return f"the program {how}{f': {self.used_up}' if self.used_up else ''}{f': {self.tail}' if self.tail else ''}"


async def run_process(
    command: Sequence[str],
    home: Home,
    *,
    files: Mapping[str, str],
    env: Mapping[str, str],
    stdin: str = "",
    max_memory_mb: int | None = None,
    max_cpu_s: int | None = None,
    close_s: float,
) -> Exit:
    """Run a program in its directory until it ends; when cancelled, SIGTERM for its group, then SIGKILL.

    Args:
        close_s: Between the two signals.

    Raises:
        AgentError: it cannot be started.
    """
    await anyio.to_thread.run_sync(_write, home.directory, files)
    argv = list(command)
    if sys.platform == "linux":
        argv = guarded(argv, rlimits(max_memory_mb, max_cpu_s))
        if home.path != str(home.directory):
            argv = [*_SAME, str(home.directory), home.path, *argv]
    try:
        transport, watched = await asyncio.get_running_loop().subprocess_exec(
            _Watched,
            *argv,
            stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=home.directory,
            env=child_env({"HOME": home.path, "PWD": home.path, "NO_PROXY": "127.0.0.1", **env, OWNER: home.mark}),
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise AgentError(f"the program cannot be started: {error}") from error
    try:
        if stdin:
            pipe = cast("asyncio.WriteTransport", transport.get_pipe_transport(0))
            pipe.write(stdin.encode(errors="replace"))
            pipe.write_eof()
        await watched.exited.wait()
        with anyio.move_on_after(_LAST_WORDS_S):
            await watched.said_all.wait()
    finally:
        with anyio.CancelScope(shield=True):
            await _kill(transport.get_pid(), watched, close_s)
        status = transport.get_returncode()
        transport.close()
    lines = watched.tail.decode(errors="replace").splitlines()
    status = -signal.SIGKILL if status is None else status
    used_up = exhausted(max_memory_mb, max_cpu_s, status, bytes(watched.tail))
    return Exit(status, " | ".join(text for line in lines if (text := line.strip())), used_up)


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


async def _kill(pid: int, watched: _Watched, close_s: float) -> None:
    """End the whole group, whether its first process has ended or not."""
    for number, seconds in ((signal.SIGTERM, close_s), (signal.SIGKILL, _KILL_S)):
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


def _shown(directory: Path) -> str:
    """The path under which all programs of this user can be shown their directory; empty if the system refuses it."""
    shown = Path(tempfile.gettempdir(), f"mcp-rollout-home-{os.getuid()}")
    shown.mkdir(mode=0o700, exist_ok=True)
    command = [*_SAME, str(directory), str(shown), "true"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_PROBE_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    finally:
        remove(str(directory))
    return str(shown) if done.returncode == 0 else ""


def _write(directory: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
