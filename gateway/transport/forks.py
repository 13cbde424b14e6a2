"""Start a server's processes by forking one that has imported its modules: the gateway's side of `fork_server`."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import anyio
import structlog

from mcp_rollout.gateway.config.models import ServerConfig
from mcp_rollout.gateway.config.variables import child_env
from mcp_rollout.gateway.transport.forked_process import ForkControl, ForkedProcess, close_streams, open_streams
from mcp_rollout.gateway.transport.guard import guarded, rlimits
from mcp_rollout.gateway.transport.python_program import PythonProgram, python_program

log = structlog.get_logger(__name__)

_FORK_SERVER = Path(__file__).with_name("fork_server")
_RETRY_S = 30.0
"""After a fork server died, how long servers are spawned before another one is started."""
_FORK_S = 5.0
"""Bound on one fork; after it the server is spawned."""
_MARK_BYTES = 24
"""Beyond the fork server's own mark: room for the marks of its forks."""
_TAIL_BYTES = 2048


class Forks:
    """Forks the processes of one server entry. Its fork server is started by the second process that is asked for.

    Args:
        mark: Name and value of the variable by which the sweeper finds the fork server; its forks have values of their
            own.
        placeholder: What differs between leases in the entry has it in its text. If anything does, each fork runs the
            program's main module; else it goes on from where the program makes its event loop.
    """

    def __init__(self, server: str, config: ServerConfig, *, mark: tuple[str, str], placeholder: str) -> None:
        self._server, self._config, self._mark, self._placeholder = server, config, mark, placeholder
        self._program: PythonProgram | None = None
        self._asked = 0
        self.refused = ""
        """Why processes of this entry are spawned; empty while they are forked."""
        self._process: asyncio.SubprocessTransport | None = None
        self._control: ForkControl | None = None
        self._lifeline = -1
        self._ids = itertools.count(1)
        self._asking: dict[int, tuple[asyncio.Future[ForkedProcess | str], asyncio.SubprocessProtocol]] = {}
        self._forks: dict[int, ForkedProcess] = {}
        self._ready: asyncio.Future[str] | None = None
        self._lock = anyio.Lock()
        self._not_before = 0.0
        self._stderr = bytearray()

    async def start(self, config: ServerConfig, protocol: asyncio.SubprocessProtocol) -> ForkedProcess | None:
        """A fork for `config`, this entry as placed for one lease; None if the caller has to spawn it."""
        self._asked += 1
        if self._asked == 1 or self.refused or not await self._is_running():
            return None
        assert self._program is not None and self._control is not None
        number = next(self._ids)
        varying = [self._mark[0], *(name for name, value in self._config.env.items() if self._differs(value))]
        request = {
            "id": number,
            "arguments": config.args[self._program.skipped :],
            "env": {name: config.env[name] for name in varying},
            "cwd": config.cwd if self._differs(self._config.cwd or "") else None,
            "limits": rlimits(config.max_memory_mb, config.max_cpu_s),
        }
        ours, theirs = open_streams()
        answer: asyncio.Future[ForkedProcess | str] = asyncio.get_running_loop().create_future()
        # Registered before the request is sent: the answer may arrive before `send` returns.
        self._asking[number] = answer, protocol
        try:
            await self._control.send(json.dumps(request).encode(), theirs, _FORK_S)
            with anyio.fail_after(_FORK_S):
                forked = await answer
        except (OSError, TimeoutError) as error:
            close_streams(ours)
            self._lost(f"{type(error).__name__}: {error}".rstrip(": "))
            return None
        except BaseException:  # cleanup, also when cancelled
            # The fork may exist already. It reads the end of its input; the sweeper ends it otherwise.
            close_streams(ours)
            raise
        finally:
            del self._asking[number]
            # The fork has its own copies, passed with the message; ours would keep its pipes open after it died.
            close_streams(theirs)
        if isinstance(forked, str):
            close_streams(ours)
            self._refuse(forked)
            return None
        await forked.connect(ours)
        return forked

    def _differs(self, *texts: str) -> bool:
        return any(self._placeholder in text for text in texts)

    async def aclose(self) -> None:
        """End the fork server. Its forks have ended before."""
        self._end()
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1

    async def _is_running(self) -> bool:
        async with self._lock:
            if self._control is not None:
                return True
            if self.refused or asyncio.get_running_loop().time() < self._not_before:
                return False
            try:
                with anyio.fail_after(self._config.start_timeout_s):
                    refused = await self._open()
            except (OSError, TimeoutError) as error:
                refused = f"its fork server did not start: {error or 'no answer in time'}"
            except BaseException:  # cleanup, also when cancelled: no partly started fork server is left
                self._end()
                raise
            if refused:
                self._end()
                self._refuse(refused)
            return not refused

    async def _open(self) -> str:
        """Start the fork server; returns why it refuses to fork, or an empty text once it is ready."""
        config, cwd = self._config, self._config.cwd
        env = child_env({name: value for name, value in config.env.items() if not self._differs(value)})
        self._program = program = python_program(config, env)
        if sys.platform != "linux" or not hasattr(os, "pidfd_open"):
            return "forks need Linux"
        if program is None:
            return "its command is not `python -m MODULE` or `python SCRIPT`"
        moves = self._differs(cwd or "")
        # `python -m` finds modules in the working directory.
        if self._differs(*program.interpreter, *program.main) or (moves and program.main[0] == "-m"):
            return "its program differs between leases"
        varies = moves or self._differs(*config.env.values(), *config.args)
        mark, value = self._mark
        # Long enough for the mark of any fork, which overwrites it in the process's initial environment.
        env[mark] = f"{value}.".ljust(len(value) + _MARK_BYTES, "0")
        loop = asyncio.get_running_loop()
        # A packet each: messages keep their borders, and descriptors travel with the message that they belong to.
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        control = ForkControl(ours)
        # One lifeline for all fork servers of the entry. This process alone has its writing end, which the kernel
        # closes when it dies.
        reads, self._lifeline = (-1, self._lifeline) if self._lifeline >= 0 else os.pipe()
        if reads < 0:
            reads = os.open(f"/proc/self/fd/{self._lifeline}", os.O_RDONLY | os.O_NONBLOCK)
        self._control, self._ready = control, loop.create_future()
        argv = [*program.interpreter, str(_FORK_SERVER), str(theirs.fileno()), str(reads), mark]
        argv += ["main", *program.main] if varies else ["loop", *program.main, *config.args[program.skipped :]]
        try:
            self._process, _ = await loop.subprocess_exec(
                # A fork server that was given up may end later, which says nothing about the one that replaced it.
                lambda: _Watched(self._heard, lambda: self._lost("it ended") if self._control is control else None),
                *guarded(argv, []),
                env=env,
                cwd="/" if moves else cwd,
                start_new_session=True,
                pass_fds=(theirs.fileno(), reads),
            )
        finally:
            theirs.close()
            os.close(reads)
        # A program that reads its input without an event loop meets its end at once, and is not waited for.
        cast("asyncio.WriteTransport", self._process.get_pipe_transport(0)).close()
        control.listen(self._receive)
        return await self._ready

    def _heard(self, data: bytes) -> None:
        self._stderr = (self._stderr + data)[-_TAIL_BYTES:]

    def _receive(self) -> None:
        assert self._control is not None
        try:
            message, handles = self._control.receive()
        except BlockingIOError:
            return
        except OSError as error:
            return self._lost(str(error))
        if not message:
            return self._lost("it ended")
        said = cast("dict[str, Any]", json.loads(message))
        if "ended" in said:
            if (fork := self._forks.pop(said["ended"], None)) is not None:
                fork.exited(said["status"])
        elif "id" in said:
            answer, protocol = self._asking.get(said["id"], (None, None))
            if answer is not None and protocol is not None and not answer.done():
                if "refused" in said:
                    return answer.set_result(said["refused"])
                # Entered here, since its end may be in the next message.
                fork = self._forks[said["pid"]] = ForkedProcess(said["pid"], handles[0], protocol)
                return answer.set_result(fork)
        elif self._ready is not None and not self._ready.done():
            self._ready.set_result(said.get("refused", ""))
        for handle in handles:
            os.close(handle)

    def _read_last_words(self) -> None:
        """Read what a fork server that has ended said before; its end may be noticed first."""
        assert self._control is not None and self._ready is not None
        try:
            self._ready.set_result(json.loads(self._control.receive()[0]).get("refused", ""))
        except (OSError, ValueError):
            pass  # it said nothing

    def _refuse(self, reason: str) -> None:
        self.refused = reason
        log.warning("forks.refused", server=self._server, problem=reason, remedy="its processes are spawned")

    def _lost(self, reason: str) -> None:
        """The fork server is gone. Its forks live on, and until the next one starts, servers are spawned."""
        if self._control is None:
            return
        if self._ready is not None and not self._ready.done():
            self._read_last_words()
            tail = self._stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
            if not self._ready.done():
                self._ready.set_result(f"its fork server ended before it could fork: {''.join(tail)[:300]}")
            return
        log.warning("forks.lost", server=self._server, problem=reason, remedy=f"spawned for {_RETRY_S:g} s")
        self._not_before = asyncio.get_running_loop().time() + _RETRY_S
        self._end()
        for fork in self._forks.values():
            fork.watch()
        self._forks.clear()

    def _end(self) -> None:
        control, process = self._control, self._process
        self._control = self._process = None
        if control is not None:
            control.close()
        for answer, _ in self._asking.values():
            if not answer.done():
                answer.set_exception(ConnectionError("the fork server ended"))
                answer.exception()  # read here: no task awaits it where its request waits to be sent
        if process is not None:
            process.close()  # kills it


class _Watched(asyncio.SubprocessProtocol):
    def __init__(self, on_stderr: Callable[[bytes], None], on_exit: Callable[[], None]) -> None:
        self._on_stderr, self._on_exit = on_stderr, on_exit

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 2:
            self._on_stderr(data)

    def process_exited(self) -> None:
        self._on_exit()
