"""The child process: isolates itself step by step and then runs the code. A failed step ends it before that.

There are three processes, and each dies with its parent. The first makes the namespaces. The second is the init of its
own process namespace: it builds the file system and waits. The third drops its remaining privileges and runs the code.
When the init ends, the kernel kills every process in its namespace.
"""

from __future__ import annotations

import _socket
import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn, cast

from mcp_rollout.mcp_servers._jail import filesystem, kernel, seccomp

READY = b"."
"""Written to `status` after all isolation steps, before the first line of the code."""
UNPRIVILEGED_ID = 65534

_LINKED = ("bz2", "hashlib", "lzma", "zlib")
"""Modules that need a shared library of the system. They are imported first: the new root does not have it."""


class Limits(NamedTuple):
    """What a run may use. A named tuple, because `dataclasses` would slow down the start of every child."""

    memory_mb: int = 256
    """Address space of the process, including about 60 MB for the interpreter."""
    cpu_s: int = 3
    wall_s: float = 15.0
    """Time from the start of the code. Well above `cpu_s`, so that a busy machine does not cut code that computes."""
    start_s: float = 30.0
    """Time for starting the interpreter before that, on a busy machine."""
    disk_mb: int = 8
    """Size of the writable directory, which is in memory too."""
    output_bytes: int = 1 << 20
    """Of standard output and error together, and of results; more ends the run."""
    files: int = 32
    """Number of open files."""


def main(given: dict[str, Any]) -> NoReturn:
    """Isolates the process and runs the code.

    Args:
        given: `limits`; `source`; `parent`, the parent's process id; `results` and `status`, file descriptors to write
            to; `function` and `arguments`, for calls.
    """
    limits = Limits(**given["limits"])
    for name in _LINKED:
        __import__(name)
    libraries, filters = filesystem.library_directories(), seccomp.program()
    _die_with_parent(given["parent"])
    kernel.no_new_privileges()
    _separate()
    # `unshare` puts only children into the new process namespace: the first of them is its init.
    _in_child(lambda: _as_init(given, limits, libraries, filters), given)


def _as_init(given: dict[str, Any], limits: Limits, libraries: list[str], filters: list[Any]) -> NoReturn:
    # The parent is outside of the process namespace, where its id reads as 0.
    _die_with_parent(0)
    filesystem.enter(libraries, limits.disk_mb)
    _in_child(lambda: _as_code(given, limits, libraries, filters), given)


def _as_code(given: dict[str, Any], limits: Limits, libraries: list[str], filters: list[Any]) -> NoReturn:
    _die_with_parent(1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _empty_standard_input()
    _limit(limits)
    kernel.drop_capabilities()
    sys.path[:] = [*libraries, *(os.path.join(library, "lib-dynload") for library in libraries)]
    kernel.filter_calls(filters)
    _verify_isolation(libraries)
    os.write(given["status"], READY)
    os.close(given["status"])
    _run(given)


def _separate() -> None:
    # Read before: in the new user namespace both are unmapped.
    user, group = os.getuid(), os.getgid()
    kernel.unshare(
        kernel.CLONE_NEWUSER
        | kernel.CLONE_NEWNS
        | kernel.CLONE_NEWPID
        | kernel.CLONE_NEWNET
        | kernel.CLONE_NEWIPC
        | kernel.CLONE_NEWUTS
        | kernel.CLONE_NEWCGROUP
    )
    for name, text in (
        # Before `gid_map`, which the kernel does not let an unprivileged process write otherwise (user_namespaces(7)).
        ("setgroups", "deny"),
        ("uid_map", f"{UNPRIVILEGED_ID} {user} 1"),
        ("gid_map", f"{UNPRIVILEGED_ID} {group} 1"),
    ):
        try:
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
        except OSError as error:
            raise OSError(error.errno, f"{name}: {error.strerror}") from error


def _in_child(then: Callable[[], NoReturn], given: dict[str, Any]) -> NoReturn:
    """Runs `then` in a new process and exits with its status. SIGTERM kills that process, so that it is reaped here."""
    child = os.fork()
    if child == 0:
        then()

    def kill(_number: int, _frame: object) -> None:
        os.kill(child, signal.SIGKILL)

    signal.signal(signal.SIGTERM, kill)
    for descriptor in (0, 1, 2, given["results"], given["status"]):
        os.close(descriptor)  # the parent reads until all other ends are closed
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)


def _die_with_parent(parent: int) -> None:
    kernel.die_with_parent()
    if os.getppid() != parent:  # it had ended before the request
        os._exit(1)


def _empty_standard_input() -> None:
    read, write = os.pipe()
    os.dup2(read, 0)
    os.close(read)
    os.close(write)


def _limit(limits: Limits) -> None:
    memory = limits.memory_mb << 20
    for kind, most in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CPU, limits.cpu_s),
        (resource.RLIMIT_FSIZE, limits.disk_mb << 20),
        (resource.RLIMIT_NOFILE, limits.files),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        resource.setrlimit(kind, (most, most))


def _verify_isolation(libraries: list[str]) -> None:
    """Tries operations that must fail. Raises RuntimeError if one succeeds."""
    seen = {f"/{name}" for name in os.listdir("/")}
    if extra := seen - {filesystem.WORK, *("/" + library.split("/")[1] for library in libraries)}:
        raise RuntimeError(f"isolation is not complete: {', '.join(sorted(extra))} can be seen")
    attempts: list[tuple[str, Callable[[], object]]] = [
        ("a socket", lambda: _socket.socket(_socket.AF_INET)),
        ("the host's files", lambda: os.stat("/proc/self")),
        ("the root directory", lambda: os.mkdir("/here")),
        ("another process", os.fork),
    ]
    for what, attempt in attempts:
        try:
            attempt()
        except OSError:
            continue
        raise RuntimeError(f"isolation is not complete: {what} can be accessed")
    if os.getpid() != 2:
        raise RuntimeError("isolation is not complete: no process namespace of its own")


def _run(given: dict[str, Any]) -> NoReturn:
    """Runs the source, and calls its function with each of the arguments. Nothing is trusted from here on."""
    namespace: dict[str, Any] = {"__name__": "__main__" if given.get("function") is None else "solution"}
    code = 0
    try:
        exec(compile(given["source"], "<program>", "exec"), namespace)
        if given.get("function") is not None:
            _call_each(namespace[given["function"]], given["arguments"], given["results"])
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 0 if left.code is None else 1
        if code == 1 and left.code is not None:
            sys.stderr.write(f"{left.code}\n")
    except BaseException as error:  # the boundary to untrusted code
        code = 1
        import traceback  # here, because most runs need none and the import takes a third of the start-up time

        shown = traceback.TracebackException.from_exception(error)
        while shown.stack and shown.stack[0].filename != "<program>":
            del shown.stack[0]
        sys.stderr.write("".join(shown.format()))
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code & 0xFF)


def _call_each(function: Callable[..., object], arguments: list[list[Any]], results: int) -> None:
    for given in arguments:
        try:
            answer = json.dumps({"value": function(*given)})
        except Exception as error:  # the boundary to untrusted code: one call fails, not all
            answer = json.dumps({"error": f"{type(error).__name__}: {error}"[:300]})
        os.write(results, answer.encode() + b"\n")


def start() -> NoReturn:
    """Reads `main`'s argument as JSON from standard input. Errors before the code runs go to standard error."""
    try:
        main(cast("dict[str, Any]", json.load(sys.stdin)))
    except BaseException as error:  # the boundary of the process: no code may run after this
        sys.stderr.write(f"{type(error).__name__}: {error}")
        sys.stderr.flush()
        os._exit(1)
