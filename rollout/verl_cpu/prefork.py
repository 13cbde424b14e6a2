# pyright: basic
"""Ray workers forked from a process that has already imported verl.

A verl job on one machine has about eight worker processes, and each spends ten seconds of CPU time importing torch,
transformers and verl. As Ray's `runtime_env.py_executable` this module replaces the interpreter that starts a worker:

    python -m rollout.verl_cpu.prefork [--preload MODULE,...] SCRIPT [ARGUMENT ...]

The first one to start leaves a server behind, beside the raylet's socket. The server imports the modules once and forks
for each worker; it ends when the raylet does. The process that Ray started waits for its worker and takes over its exit
status. Linux only.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

PRELOAD = "verl.trainer.main_ppo,verl.trainer.ppo.v1,verl.workers.engine_workers,rollout.verl_cpu.replica"

# How long, in seconds, the server takes to see that a worker has ended or that the raylet is gone.
_POLL_S = 0.5
# How long it waits for the rest of a request, in seconds; the sender writes it in one go.
_REQUEST_S = 10.0


def main() -> NoReturn:
    preload, arguments = PRELOAD, sys.argv[1:]
    if arguments[0] == "--preload":
        preload, arguments = arguments[1], arguments[2:]
    request = {"argv": arguments, "env": dict(os.environ), "cwd": os.getcwd()}
    with _connect(_directory(arguments), preload) as connection:
        socket.send_fds(connection, [b"w"], [0, 1, 2])
        connection.sendall(json.dumps(request).encode())
        connection.shutdown(socket.SHUT_WR)
        # No bound: this is as long as the worker lives. If the server dies, the connection ends.
        status = connection.recv(16)
    os._exit(int(status) if status else 1)


def _directory(arguments: list[str]) -> Path:
    """Where the raylet has its socket: private to its user, and named in every worker's arguments."""
    for argument in arguments:
        if argument.startswith("--raylet-name="):
            return Path(argument.partition("=")[2]).parent
    raise SystemExit("rollout.verl_cpu.prefork: no --raylet-name among the arguments; it starts Ray workers only")


def _connect(directory: Path, preload: str) -> socket.socket:
    """A connection to the server, which is started if there is none."""
    address = str(directory / "prefork")
    with open(directory / "prefork.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(address)
        except (FileNotFoundError, ConnectionRefusedError):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(address)
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(address)
            os.chmod(address, 0o600)
            listener.listen(256)
            raylet = os.getppid()
            if os.fork() == 0:
                lock.close()
                connection.close()
                _serve(listener, raylet, preload, directory)
            listener.close()
            connection.connect(address)
    return connection


@dataclass
class _Worker:
    pid: int
    connection: socket.socket


def _serve(listener: socket.socket, raylet: int, preload: str, directory: Path) -> NoReturn:
    os.setsid()
    _redirect(os.open(directory / "prefork.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1, 2)
    _import(preload)
    listener.settimeout(_POLL_S)
    workers: list[_Worker] = []
    while _is_alive(raylet):
        try:
            connection = listener.accept()[0]
        except TimeoutError:
            connection = None
        if connection is not None:
            workers += _fork(connection, [listener, *(worker.connection for worker in workers)])
        workers = [worker for worker in workers if not _reported(worker)]
    os._exit(0)


def _import(preload: str) -> None:
    import gc
    import importlib
    import traceback

    for module in preload.split(","):
        try:
            importlib.import_module(module)
        except Exception:  # a worker that needs the module will say so where it can be seen
            traceback.print_exc()
    gc.collect()
    gc.freeze()  # the collector would write to every page that the workers share


def _fork(connection: socket.socket, inherited: list[socket.socket]) -> Iterator[_Worker]:
    connection.settimeout(_REQUEST_S)
    _, files, _, _ = socket.recv_fds(connection, 1, 3)
    with connection.makefile("rb") as stream:
        try:
            request = json.load(stream)
        except (ValueError, OSError):  # its sender has died meanwhile
            connection.close()
            return
    pid = os.fork()
    if pid == 0:
        for other in [connection, *inherited]:
            other.close()
        for target, file in enumerate(files):
            _redirect(file, target)
        _become_worker(request)
    for file in files:
        os.close(file)
    yield _Worker(pid, connection)


def _become_worker(request: dict[str, Any]) -> NoReturn:
    import runpy
    import traceback

    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = request["argv"]
    if "numpy" in sys.modules:  # Python's own generator is seeded anew after a fork, numpy's is not
        sys.modules["numpy"].random.seed()
    status = 1
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
        status = 0
    except SystemExit as exit_:
        status = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    except BaseException:  # the boundary of a process: what `python` does with an exception
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _reported(worker: _Worker) -> bool:
    """Whether a worker has ended; if so, its waiting process has been told."""
    pid, status = os.waitpid(worker.pid, os.WNOHANG)
    if pid == 0:
        return False
    code = os.waitstatus_to_exitcode(status)
    with contextlib.suppress(OSError):
        worker.connection.sendall(str(code if code >= 0 else 128 - code).encode())
    worker.connection.close()
    return True


def _redirect(file: int, *targets: int) -> None:
    for target in targets:
        os.dup2(file, target)
    if file not in targets:
        os.close(file)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    main()
