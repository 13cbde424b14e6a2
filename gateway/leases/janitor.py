"""The worker's side of the sweeper: marks server processes and makes lease directories, and has both removed.

An entry names its lease's directory as `${lease.dir}`, which is expanded for each connection.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self
from uuid import uuid4

import anyio
import structlog

from mcp_rollout.gateway.config.models import GatewayConfig, LeaseDirConfig, ServerConfig
from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.gateway.leases.sweeper import remove
from mcp_rollout.gateway.types import Scope

log = structlog.get_logger(__name__)

LEASE_DIR = "${lease.dir}"
OWNER = "MCP_ROLLOUT_OWNER"
"""Environment variable that marks a server process and, by inheritance, all its descendants."""
_SWEEPER = Path(__file__).with_name("sweeper.py")
_PREFIX = f"mcp-rollout-lease-{platform.node()}-"
"""Contains the host name: on a shared file system a lock does not show whether an owner on another host is alive."""
_RANDOM = 8
"""Characters that `mkdtemp` adds: with more, the name is that of a host whose own name begins with this one's."""
_LAST_SWEEP_S = 5.0
"""Bound on the last sweep; after it the gateway closes without waiting."""
_START_S = 30.0
"""Bound on the start of the sweeper; after it the gateway opens without waiting."""


class Janitor:
    """Starts the sweeper. Enter it before the first server starts, leave it after the last one has ended.

    Args:
        lease_dir: Parent and template of lease directories; None if no server names one.

    Raises, on entry:
        ConfigError: the template is not a directory, or `parent` is not writable.
    """

    def __init__(self, lease_dir: LeaseDirConfig | None) -> None:
        self._config = lease_dir
        self._token = uuid4().hex
        self._marks = self._made = 0
        self._root: Path | None = None
        self._lock = -1
        self._unsent = b""
        self._closed = False
        self._problem = ""
        """Why the sweeper no longer reads; empty while it does."""

    async def __aenter__(self) -> Self:
        if self._config is not None:
            self._root, self._lock = await anyio.to_thread.run_sync(_make_root, self._config)
        argv = [sys.executable, "-I", "-S", str(_SWEEPER), str(os.getpid()), self._token]
        self._process = await anyio.to_thread.run_sync(_start, [*argv, str(self._root)] if self._root else argv)
        assert self._process.stdin is not None
        self._pipe = self._process.stdin.fileno()
        os.set_blocking(self._pipe, False)
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._closed = True
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        with anyio.CancelScope(shield=True), self._process.stdout as end:
            if not await anyio.to_thread.run_sync(_is_ended, end.fileno(), _LAST_SWEEP_S):
                log.warning("janitor.slow", waited_s=_LAST_SWEEP_S, directory=str(self._root or ""))
        if self._lock >= 0:
            os.close(self._lock)

    def mark(self) -> str:
        """A unique value for `OWNER`, for servers that are about to start."""
        if self._problem:
            log.warning("janitor.gone", problem=self._problem, remedy="servers still end, their children may not")
            self._problem = ""
        self._marks += 1
        return f"{self._token}.{self._marks}"

    async def directory(self) -> Path:
        """Create a directory for one lease, a copy of the template. Raises `OSError`, and then leaves none behind."""
        assert self._root is not None and self._config is not None
        self._made += 1
        made = self._root / f"lease-{self._made}"
        made.mkdir(mode=0o700)
        if self._config.template is not None:
            fill = partial(shutil.copytree, self._config.template, made, symlinks=True, dirs_exist_ok=True)
            try:
                await anyio.to_thread.run_sync(fill)
            except BaseException:  # cleanup, also when cancelled: the copy may be incomplete
                self.emptied(made)
                raise
        return made

    def ended(self, mark: str) -> None:
        """Have all processes with this mark killed, since the marked server has ended. Does not wait."""
        self._send(mark)

    def emptied(self, directory: Path) -> None:
        """Have `directory` removed, after the processes that were reported as ended are gone. Does not wait."""
        self._send(f"{self._token}.none\t{directory}")

    def _send(self, line: str) -> None:
        if self._closed:
            return  # the last sweep covers it, and the pipe's descriptor may belong to another file by now
        self._unsent += os.fsencode(line) + b"\n"
        try:
            self._unsent = self._unsent[os.write(self._pipe, self._unsent) :]
        except BlockingIOError:
            pass  # sent with the next line; the last sweep covers everything
        except OSError as error:
            # Ray kills a worker's children before the worker: `mark` reports it, where another server starts.
            self._unsent, self._problem = b"", str(error)


def _start(argv: list[str]) -> subprocess.Popen[bytes]:
    # In its own session, so that a signal to the worker's process group does not reach it.
    process = subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={},
        start_new_session=True,
    )
    # What was started ends once the sweeper runs, which thereby is no child of this process.
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_START_S)
    return process


def _is_ended(pipe: int, bound_s: float) -> bool:
    """Whether the other end of a pipe that nothing is written to is closed within this time."""
    wait = select.poll()  # not `select`, which takes no descriptor above 1,023
    wait.register(pipe, select.POLLIN)
    return bool(wait.poll(1000 * bound_s))


def _make_root(config: LeaseDirConfig) -> tuple[Path, int]:
    """Create this gateway's own directory; returns it with a lock that is held as long as its owner lives."""
    if config.template is not None and not Path(config.template).is_dir():
        raise ConfigError(
            f"no such directory: {config.template}", key="lease_dir.template", remedy="name one, or leave the key out"
        )
    parent = Path(config.parent or tempfile.gettempdir()).absolute()
    try:
        _remove_stale(parent.glob(_PREFIX + "?" * _RANDOM))
        root = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        # Renamed only when locked, so that no other gateway takes the directory for one whose owner has died.
        unnamed = root / ".locking"
        lock = os.open(unnamed, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        unnamed.rename(root / ".lock")
    except OSError as error:
        raise ConfigError(
            f"cannot make directories in {parent}: {error.strerror}", key="lease_dir.parent", remedy="name another"
        ) from error
    return root, lock


def _remove_stale(roots: Iterable[Path]) -> None:
    """Remove directories of workers that were killed together with their sweepers."""
    for root in roots:
        try:
            lock = os.open(root / ".lock", os.O_RDWR | os.O_NOFOLLOW)
        except OSError:
            continue  # another user's, or not locked yet
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue
        else:
            remove(str(root))
        finally:
            os.close(lock)


def names_lease_dir(config: ServerConfig) -> bool:
    """Whether the entry names the lease's directory in `args`, `env` or `cwd`."""
    return any(LEASE_DIR in text for text in (config.cwd or "", *config.args, *config.env.values()))


def check_fixed(config: GatewayConfig, *, has_directory: bool) -> None:
    """Raises ConfigError: a fixed argument names the lease's directory where a trajectory has none here."""
    for server, entry in config.servers.items():
        for tool, change in entry.tools.change.items():
            if not has_directory and LEASE_DIR in repr(change.fixed):
                problem = (
                    f"{LEASE_DIR} is known only on this machine, beside a server that names it in args, env or cwd"
                )
                key = f"servers.{server}.tools.change.{tool}.fixed"
                raise ConfigError(problem, key=key, remedy="give the path itself")


def bundled(config: GatewayConfig) -> tuple[str, ...]:
    """The servers that share a directory for each lease and are therefore leased together.

    Raises:
        ConfigError: one of them cannot have a separate directory for every lease.
    """
    for server, entry in config.servers.items():
        at = f"servers.{server}"
        elsewhere = (entry.command or "", entry.url or "", *entry.headers.values())
        if any(LEASE_DIR in text for text in elsewhere):
            raise ConfigError(f"{LEASE_DIR} is not expanded here", key=at, remedy="use it in args, env or cwd")
        if not names_lease_dir(entry):
            continue
        if entry.command is None:
            raise ConfigError(f"{LEASE_DIR} needs a command", key=at, remedy="only stdio servers get a directory")
        if entry.scope is Scope.SHARED:
            raise ConfigError(
                f"{LEASE_DIR} is a separate directory for each lease, and under scope shared one process serves all",
                key=f"{at}.scope",
                remedy="set scope: process",
            )
        if entry.leases_per_process > 1:
            raise ConfigError(
                f"{LEASE_DIR} changes with each lease, and a reused process would keep the first one",
                key=f"{at}.leases_per_process",
                remedy="leave it at 1",
            )
    servers = tuple(server for server, entry in config.servers.items() if names_lease_dir(entry))
    check_fixed(config, has_directory=bool(servers))
    return servers


def placed(config: ServerConfig, directory: Path | None, **env: str) -> ServerConfig:
    """The entry for one connection: `${lease.dir}` expanded, and `env` added to its variables."""
    if config.command is None:
        return config
    path = str(directory)
    return config.model_copy(
        update={
            "args": tuple(text.replace(LEASE_DIR, path) for text in config.args),
            "env": {name: text.replace(LEASE_DIR, path) for name, text in config.env.items()} | env,
            "cwd": config.cwd.replace(LEASE_DIR, path) if config.cwd is not None else None,
        }
    )
