"""Fork on request, make each fork what its request asks for, and report how forks ended."""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import json
import os
import resource
import select
import signal
import socket
import sys
import threading
from typing import Any

_MESSAGE_BYTES = 1 << 18
_F_SETSIG = 10


class Mark:
    """The variable of that name in this process's initial environment, where the sweeper reads it.

    Its first value must be at least as long as any that replaces it.
    """

    def __init__(self, name: str) -> None:
        getenv = ctypes.CDLL(None).getenv
        getenv.restype = ctypes.c_void_p
        self._name, self._size = name, len(os.environ.get(name, ""))
        self._at = getenv(name.encode())

    def set(self, env: dict[str, str]) -> None:
        """Replace the value by that in `env`."""
        value = env.get(self._name, "").encode()
        if self._at and len(value) <= self._size:
            ctypes.memmove(self._at, value.ljust(self._size, b"\0"), self._size)


class ForkLoop:
    """Serves the gateway at the other end of `control`, until it closes that end.

    Args:
        lifeline: Reading end of a pipe of which the worker has the only writing end.
    """

    def __init__(self, control: socket.socket, lifeline: int, mark: Mark) -> None:
        self._control, self._lifeline, self._mark = control, lifeline, mark
        # None if it is not Python's, which cannot be set again.
        self._of_program = signal.getsignal(signal.SIGCHLD) or signal.SIG_DFL
        self._woken, self._wakes = os.pipe()

    def serve(self) -> list[str]:
        """Returns in each fork, with the arguments of its request."""
        os.set_blocking(self._wakes, False)
        signal.set_wakeup_fd(self._wakes, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _wake)
        while True:
            ready, _, _ = select.select([self._control, self._woken], [], [])
            if self._woken in ready:
                os.read(self._woken, 4096)
                self._report_ended()
            if self._control in ready and (arguments := self._answer()) is not None:
                return arguments

    def _answer(self) -> list[str] | None:
        message, streams, _, _ = socket.recv_fds(self._control, _MESSAGE_BYTES, 3)
        if not message:
            os._exit(0)
        request = json.loads(message)
        # A fork has only the thread that called `fork`: a lock that another thread holds would stay locked in it.
        if (threads := len(os.listdir("/proc/self/task")) - 1) > 0:
            self._send({"id": request["id"], "refused": f"it starts {threads} threads before it serves"})
        else:
            pid = os.fork()
            if pid == 0:
                return self._become(request, streams)
            # Not reaped yet, so that the number is still this process's.
            handle = os.pidfd_open(pid)
            self._send({"id": request["id"], "pid": pid}, handle)
            os.close(handle)
        for stream in streams:
            os.close(stream)
        return None

    def _report_ended(self) -> None:
        while True:
            try:
                # In a loop: one SIGCHLD may announce the end of several forks.
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._send({"ended": pid, "status": -os.WTERMSIG(status) if os.WIFSIGNALED(status) else status >> 8})

    def _send(self, message: dict[str, Any], handle: int | None = None) -> None:
        data = json.dumps(message).encode()
        try:
            self._control.send(data) if handle is None else socket.send_fds(self._control, [data], [handle])
        except OSError:
            os._exit(0)  # the gateway is gone

    def _become(self, request: dict[str, Any], streams: list[int]) -> list[str]:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, self._of_program)
        os.close(self._woken)
        os.close(self._wakes)
        self._control.close()
        # Also makes a process group, which the gateway signals as a whole when it ends the server.
        os.setsid()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        self._tie_to_worker()
        for name, soft, hard in request["limits"]:
            number = getattr(resource, f"RLIMIT_{name}")
            highest = resource.getrlimit(number)[1]
            # A process may only lower its hard limits: a value above the inherited one would be an error.
            if highest != resource.RLIM_INFINITY:
                soft, hard = min(soft, highest), min(hard, highest)
            resource.setrlimit(number, (soft, hard))
        # Of a program's own changes to both, those stay that no lease replaces.
        os.environ.update(request["env"])
        if request["cwd"] is not None:
            os.chdir(request["cwd"])
        self._mark.set(request["env"])
        # Without this all forks would draw the same numbers from it. `random` seeds itself in a fork.
        if "numpy.random" in sys.modules:
            sys.modules["numpy.random"].seed()
        return request["arguments"]

    def _tie_to_worker(self) -> None:
        """Have the kernel kill this process when the worker dies, whatever becomes of the fork server.

        A parent-death signal would follow the fork server. When the writing end of the lifeline closes, the kernel
        sends the signal set here. The pipe is opened again, since inherited descriptors share one such setting.
        """
        own = os.open(f"/proc/self/fd/{self._lifeline}", os.O_RDONLY | os.O_NONBLOCK)
        os.close(self._lifeline)
        fcntl.fcntl(own, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(own, _F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(own, fcntl.F_SETFL, fcntl.fcntl(own, fcntl.F_GETFL) | os.O_ASYNC)
        if select.select([own], [], [], 0)[0]:
            os._exit(1)  # the worker died before the signal was requested


def _wake(number: int, frame: object) -> None:
    """A handler, so that the signal is not ignored: what matters is the byte in the pipe."""


def end(code: object) -> None:
    """End this process as the interpreter does, without taking modules apart, which copies each page that forks share:
    a life of a fork of `mcp_servers.retail`, start and end, takes 29 ms of CPU, and 70 where they are taken apart.

    Args:
        code: As of `SystemExit`.
    """
    status = code if isinstance(code, int) else 0 if code is None else 1
    if isinstance(code, str):
        sys.stderr.write(f"{code}\n")
    try:
        threading._shutdown()  # pyright: ignore
        atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):
                pass  # its other end is closed
        os._exit(status & 0xFF)
