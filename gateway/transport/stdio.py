"""The stdio transport: a child process with newline-delimited JSON-RPC over its pipes, for `mcp.Client`.

Unlike the SDK's own transport it splits lines in linear time and limits their size, loses one message and not the
session to bad UTF-8 and garbage, never blocks on a write, ends all calls with the reason as soon as the process dies,
and lets no child outlive this process. It works with callbacks instead of tasks, which also makes a call cheaper.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import cast

import anyio
import structlog
from mcp.shared.message import SessionMessage

from mcp_rollout.gateway.config.models import ServerConfig
from mcp_rollout.gateway.config.variables import child_env
from mcp_rollout.gateway.errors import ProgramNotFound, ServerUnavailable
from mcp_rollout.gateway.transport.forks import Forks
from mcp_rollout.gateway.transport.guard import exhausted, guarded, out_of_memory, rlimits
from mcp_rollout.gateway.transport.line_calls import LineCalls, Outbox
from mcp_rollout.gateway.transport.link import Link
from mcp_rollout.mcp_wire.lines import LineSplitter, Oversize
from mcp_rollout.mcp_wire.streams import Inbox

log = structlog.get_logger(__name__)

_TAIL_BYTES = 8192
_TAIL_LINES = 5
_LINES_AT_ONCE = 100
_LINES_HIGH = 1000
_LAST_WORDS_S = 0.2
"""After the first sign of death, how long the other pipes and the exit status may take to arrive."""
_KILL_S = 2.0
"""How long the kernel may take to end a process that got SIGKILL."""
_ABRUPT_S = 0.5
"""How long a server that never finished its handshake has between SIGTERM and SIGKILL."""


class StdioTransport(asyncio.SubprocessProtocol):
    """Starts the server on entry, ends it and everything it started on exit; the pair it yields is mcp's streams.

    Args:
        forks: Forks the process instead, where that is possible.

    Raises:
        ServerUnavailable: on entry, when the command cannot be started.
    """

    def __init__(self, name: str, config: ServerConfig, link: Link, forks: Forks | None = None) -> None:
        self._name, self._config, self._link, self._forks = name, config, link, forks
        self._calls = LineCalls(name, link, config.max_message_bytes)
        self._splitter = LineSplitter(config.max_message_bytes)
        self._stderr = bytearray()
        self._stderr_cut = False
        self._process: asyncio.SubprocessTransport | None = None
        self._exited = anyio.Event()
        self._open_pipes = {1, 2}
        self._lines: deque[bytes | Oversize] = deque()
        """Received and not read yet."""
        self._reading = self._end_after_lines = False
        self._last_words: asyncio.TimerHandle | None = None
        link.stderr_tail = self._tail
        link.out_of_memory = self._out_of_memory

    async def __aenter__(self) -> tuple[Inbox[SessionMessage], Outbox]:
        self._check_directory()
        process = await self._forks.start(self._config, self) if self._forks is not None else None
        try:
            process = process or await self._spawn()
        except (OSError, ValueError) as error:
            raise ServerUnavailable(f"cannot start {self._config.label!r}: {error}", server=self._name) from error
        self._process, self._link.pid = process, process.get_pid()
        return self._calls.open(
            cast("asyncio.WriteTransport", process.get_pipe_transport(0)),
            cast("asyncio.ReadTransport", process.get_pipe_transport(1)),
        )

    async def _spawn(self) -> asyncio.SubprocessTransport:
        argv, env = self._argv()
        process, _ = await asyncio.get_running_loop().subprocess_exec(
            # A process group of its own: it is signalled as a whole at the end, and Ctrl-C in this program's terminal
            # does not reach it.
            lambda: self,
            *argv,
            env=env,
            cwd=self._config.cwd,
            start_new_session=True,
        )
        # asyncio passes what it read to `pipe_data_received` by way of another turn of the event loop, for each answer.
        output = cast("asyncio.ReadTransport", process.get_pipe_transport(1))
        output.set_protocol(_Output(self, output.get_protocol()))
        return process

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        # A cancelled owner still ends the process and reaps it; `_shut_down` bounds each of its waits.
        with anyio.CancelScope(shield=True):
            await self._shut_down()

    def _check_directory(self) -> None:
        label, cwd = self._config.label, self._config.cwd
        if cwd is not None and not Path(cwd).is_dir():
            raise ServerUnavailable(f"cannot start {label!r}: no such directory {cwd!r}", server=self._name)

    def _argv(self) -> tuple[list[str], dict[str, str]]:
        command, label, cwd = self._config.command or "", self._config.label, self._config.cwd
        env = child_env(self._config.env)
        lookup = str(Path(cwd or ".") / command) if os.sep in command else command
        if shutil.which(lookup, path=env.get("PATH", os.defpath)) is None:
            raise ProgramNotFound(f"cannot start {label!r}: no such program", server=self._name)
        argv = [command, *self._config.args]
        if sys.platform == "linux":
            argv = guarded(argv, rlimits(self._config.max_memory_mb, self._config.max_cpu_s))
        return argv, env

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 2:
            self._stderr += data
            if len(self._stderr) > _TAIL_BYTES:
                self._stderr, self._stderr_cut = self._stderr[-_TAIL_BYTES:], True
            return
        self._lines.extend(self._splitter.feed(data))
        if not self._reading:
            self._read_lines()

    def _read_lines(self) -> None:
        """Read a bounded number of lines, then let other tasks run: a flood of lines would stop the event loop."""
        self._reading = False
        for _ in range(min(_LINES_AT_ONCE, len(self._lines))):
            self._calls.read(self._lines.popleft())
        self._calls.inbox.hold(len(self._lines) > _LINES_HIGH)
        if self._lines:
            # A callback, not a task: lines keep their order, and other tasks run between two batches.
            self._reading = True
            asyncio.get_running_loop().call_soon(self._read_lines)
        elif self._end_after_lines:
            self._end()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self._open_pipes.discard(fd)
        if fd != 2:  # a server may close its standard error and go on
            self._expect_the_end()

    def process_exited(self) -> None:
        self._exited.set()
        self._expect_the_end()

    def _expect_the_end(self) -> None:
        """End the line once all that the process left is read, or shortly: a child of its may hold the pipes."""
        if self._exited.is_set() and not self._open_pipes:
            self._end_when_read()
        # Pipes and exit status arrive in any order, and the last pipe data may hold the answer to a call.
        elif self._last_words is None and not self._link.over.is_set():
            self._last_words = asyncio.get_running_loop().call_later(_LAST_WORDS_S, self._end_when_read)

    def _end_when_read(self) -> None:
        self._end_after_lines = True
        if not self._lines:
            self._end()

    def _end(self) -> None:
        if self._last_words is not None:
            self._last_words.cancel()
        # Cause and reason before the callers: one that wakes up reads both from the link.
        self._note_cause()
        self._link.end(self._how_it_ended())
        self._calls.close()

    def _note_cause(self) -> None:
        status = self._process.get_returncode() if self._process is not None else None
        if status is None and self._exited.is_set():
            # A fork that ended after its fork server: nothing can say how, and what killed the one may kill the other.
            status = -signal.SIGKILL
        if status is not None and not self._link.over.is_set():
            self._link.exhausted = exhausted(
                self._config.max_memory_mb, self._config.max_cpu_s, status, bytes(self._stderr)
            )
            # A shell, or a container's client, reports the signal of the server that it ran.
            if not self._link.exhausted and (status < 0 or status == 128 + signal.SIGKILL):
                self._link.killed = self._how_it_ended()

    def _how_it_ended(self) -> str:
        status = self._process.get_returncode() if self._process is not None else None
        match status:
            case None:
                return (
                    "the server ended after its fork server" if self._exited.is_set() else "the server closed its pipes"
                )
            case int() if status < 0:
                return f"the server was killed by {signal.Signals(-status).name}"
            case _:
                return f"the server exited with status {status}"

    def _tail(self) -> str:
        said = self._link.redact(self._stderr.decode("utf-8", "replace"), cut_before=self._stderr_cut)
        lines = said.splitlines()[-_TAIL_LINES:]
        return " | ".join(text[:300] for line in lines if (text := line.strip()))

    def _out_of_memory(self) -> str:
        process = self._process
        if process is None or self._exited.is_set():
            return ""
        return out_of_memory(self._config.max_memory_mb, process.get_pid(), bytes(self._stderr))

    async def _shut_down(self) -> None:
        """Close stdin, then SIGTERM, then SIGKILL; within `close_timeout_s` and what the kernel needs to kill."""
        process = self._process
        if process is None:
            return
        self._calls.close()
        source, output = self._calls.inbox.source, self._calls.outbox.pipe
        if source is not None and not source.is_closing():
            source.resume_reading()  # a server that flushes into a full pipe cannot exit
        if not self._link.handshake_done and not self._link.exhausted:
            self._link.exhausted = self._out_of_memory()
        half = self._config.close_timeout_s / 2
        dying = self._last_words is not None
        if output is not None:
            # `close` flushes first, which a server that no longer reads would hold up.
            output.abort() if output.get_write_buffer_size() else output.close()
        # A program that never finished its handshake may be no MCP server: it gets no time to act on the end of stdin.
        if self._link.handshake_done:
            await self._wait_exit(half)
        elif dying:  # its exit status is about to arrive, and explains why it did not start
            await self._wait_exit(_LAST_WORDS_S)
        if not self._exited.is_set():
            # The signal that ends a failed start explains nothing, and would be noted once the process is gone.
            if not self._link.handshake_done:
                self._link.end("")
            self._signal_group(signal.SIGTERM)
            await self._wait_exit(half if self._link.handshake_done else _ABRUPT_S)
        # Whatever the server itself did, its children go too.
        self._signal_group(signal.SIGKILL)
        await self._wait_exit(_KILL_S)
        if not self._exited.is_set():
            log.warning("stdio.not_reaped", server=self._name, pid=process.get_pid())
        if self._last_words is not None:
            self._last_words.cancel()
        self._link.end(self._how_it_ended())
        process.close()

    async def _wait_exit(self, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            await self._exited.wait()

    def _signal_group(self, number: int) -> None:
        assert self._process is not None
        try:
            os.killpg(self._process.get_pid(), number)
        except (ProcessLookupError, PermissionError):
            pass  # the group is empty, or (macOS) holds only zombies


class _Output(asyncio.Protocol):
    """Reads a spawned process's output without asyncio's detour; all else is left to asyncio's own protocol."""

    def __init__(self, process: StdioTransport, own: asyncio.BaseProtocol) -> None:
        self._process, self._own = process, own

    def data_received(self, data: bytes) -> None:
        self._process.pipe_data_received(1, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._own.connection_lost(exc)
