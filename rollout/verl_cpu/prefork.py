# pyright: basic
"""Ray workers forked from a process that has already imported verl.

A verl job on one machine has about eight worker processes, each of which spends ten seconds of CPU time on importing
torch, transformers and verl. As Ray's `runtime_env.py_executable` this module replaces the interpreter of a worker:

    python -m mcp_rollout.rollout.verl_cpu.prefork [--preload MODULE,...] SCRIPT [ARGUMENT ...]

The first start forks a server, whose socket is in a directory of its own next to the raylet's: a request has the
environment of a worker, and Ray's directories are open to all users of the machine. The server imports the modules
once, forks a worker for each request, and ends with the raylet. The process that Ray started waits for its worker and
exits with the worker's status. Linux only.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import struct
import sys
from pathlib import Path
from typing import Any, NoReturn

PRELOAD = (
    "mcp_rollout.rollout.verl_cpu.actor_class_ids,"  # before any module that defines an actor
    "verl.trainer.main_ppo,verl.trainer.ppo.v1,verl.workers.engine_workers,mcp_rollout.rollout.verl_cpu.replica"
)

_REQUEST_TIMEOUT_S = 10.0
"""For the rest of a request after its first byte; the client sends it in one go."""


def main() -> NoReturn:
    preload, arguments = PRELOAD, sys.argv[1:]
    if arguments[0] == "--preload":
        preload, arguments = arguments[1], arguments[2:]
    request = {"argv": arguments, "env": dict(os.environ), "cwd": os.getcwd()}
    with _connect(_raylet_directory(arguments), preload) as connection:
        socket.send_fds(connection, [b"w"], [0, 1, 2])
        connection.sendall(json.dumps(request).encode())
        connection.shutdown(socket.SHUT_WR)
        # Unbounded: this process lives as long as its worker. If the server dies, the connection closes.
        status = connection.recv(16)
    os._exit(int(status) if status else 1)


def _raylet_directory(arguments: list[str]) -> Path:
    """The directory of the raylet's socket, which is part of every worker's arguments."""
    for argument in arguments:
        if argument.startswith("--raylet-name="):
            return Path(argument.partition("=")[2]).parent
    raise SystemExit(
        "mcp_rollout.rollout.verl_cpu.prefork: no --raylet-name among the arguments; it starts Ray workers only"
    )


def _own_directory(raylet: Path) -> int:
    """Open the server's directory, and make it first if there is none.

    What is in it is named through this descriptor, so that a link or directory in its place is never followed.
    """
    path = raylet / f"prefork-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    try:
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        raise SystemExit(
            f"mcp_rollout.rollout.verl_cpu.prefork: {path} is not a directory of its own: {error}"
        ) from error
    found = os.fstat(directory)
    if found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise SystemExit(f"mcp_rollout.rollout.verl_cpu.prefork: {path} is another user's or open to others: remove it")
    return directory


def _is_own(peer: socket.socket) -> bool:
    """Whether the process at the other end is this user's."""
    _, user, _ = struct.unpack("iII", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return user == os.getuid()


def _connect(raylet_directory: Path, preload: str) -> socket.socket:
    """Connect to the server, and start it first if there is none."""
    directory = _own_directory(raylet_directory)
    address = f"/proc/self/fd/{directory}/socket"
    with open(os.open("lock", os.O_WRONLY | os.O_CREAT, 0o600, dir_fd=directory), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of clients that start at the same time, one starts the server
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(address)
        except (FileNotFoundError, ConnectionRefusedError):
            with contextlib.suppress(FileNotFoundError):
                os.unlink("socket", dir_fd=directory)
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(address)
            listener.listen(256)
            raylet = os.pidfd_open(os.getppid())
            if os.fork() == 0:
                lock.close()
                connection.close()
                _serve(listener, raylet, preload, directory)
            listener.close()
            connection.connect(address)
    os.close(directory)
    if not _is_own(connection):
        raise SystemExit("mcp_rollout.rollout.verl_cpu.prefork: the server is another user's")
    return connection


def _serve(listener: socket.socket, raylet: int, preload: str, directory: int) -> NoReturn:
    """Fork a worker for each connection, and send it the worker's exit status.

    Args:
        raylet: File descriptor of the raylet's process (pidfd), readable once the process has ended.
        directory: That of the server's own directory, for its log.
    """
    os.setsid()
    _redirect(os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600, dir_fd=directory), 1, 2)
    os.close(directory)
    # CUDA fails in forks of a process that has found a GPU. A worker has the variable that Ray gives it.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    _import(preload)
    workers: dict[int, socket.socket] = {}  # by pidfd, the connection of the client that waits for the worker
    while True:
        # Unbounded: the server lives as long as the raylet.
        ready = select.select([listener, raylet, *workers], [], [])[0]
        if raylet in ready:
            os._exit(0)
        for ended in workers.keys() & set(ready):
            with workers.pop(ended) as connection:
                _report_status(ended, connection)
        if listener in ready:
            connection = listener.accept()[0]
            if not _is_own(connection):
                connection.close()
                continue
            worker = _fork(connection, [listener, *workers.values()])
            if worker is not None:
                workers[worker] = connection


def _import(preload: str) -> None:
    import gc
    import importlib
    import traceback

    for module in preload.split(","):
        try:
            importlib.import_module(module)
        except Exception:  # boundary of the import: a worker that needs it fails where the user sees it
            traceback.print_exc()
    gc.collect()
    gc.freeze()  # the collector would write to every page that the workers share


def _fork(connection: socket.socket, inherited: list[socket.socket]) -> int | None:
    """Fork the worker that a client requests.

    Args:
        inherited: The server's other sockets, which the worker closes.

    Returns:
        The worker's pidfd, or None if the client died before its request was complete.
    """
    connection.settimeout(_REQUEST_TIMEOUT_S)
    _, files, _, _ = socket.recv_fds(connection, 1, 3)
    with connection.makefile("rb") as stream:
        try:
            request = json.load(stream)
        except (ValueError, OSError):
            connection.close()
            return None
    pid = os.fork()
    if pid == 0:
        # Ray ends the process group of a worker that it loses; without one of its own, all workers would end with it.
        os.setpgid(0, 0)
        for other in (connection, *inherited):
            other.close()
        for target, file in enumerate(files):
            _redirect(file, target)
        _run_worker(request)
    for file in files:
        os.close(file)
    return os.pidfd_open(pid)


def _run_worker(request: dict[str, Any]) -> NoReturn:
    import runpy
    import traceback

    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = request["argv"]
    if "numpy" in sys.modules:  # after a fork, Python seeds its own generator only
        sys.modules["numpy"].random.seed()
    status = 1
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
        status = 0
    except SystemExit as exit_:
        status = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    except BaseException:  # the boundary of a process: print the exception as `python` does
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _report_status(worker: int, connection: socket.socket) -> None:
    """Reap an ended worker and send its exit status, 128 plus the signal's number if a signal killed it."""
    ended = os.waitid(os.P_PIDFD, worker, os.WEXITED)
    os.close(worker)
    if ended is not None:
        status = ended.si_status if ended.si_code == os.CLD_EXITED else 128 + ended.si_status
        with contextlib.suppress(OSError):  # the client may be gone
            connection.sendall(str(status).encode())


def _redirect(file: int, *targets: int) -> None:
    for target in targets:
        os.dup2(file, target)
    if file not in targets:
        os.close(file)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    main()
