"""What the child does: shuts itself in, step by step, and then runs the code. A step that fails ends it before that.

Three processes, each gone with the one before: the first makes the namespaces; the second is the init of its own
process namespace, builds the file system and waits; the third gives up what is left and runs the code. When the init
ends, the kernel kills whatever is in its namespace.
"""

from __future__ import annotations

import _socket
import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn, cast

from mcp_servers._jail import calls, kernel, root
from mcp_servers._jail.limits import Limits

READY = b"."
"""Written to `status` once everything is shut, and before the first line of the code."""
NOBODY = 65534

_LINKED = ("bz2", "hashlib", "lzma", "zlib")
"""Modules that need a shared library of the system, which is not to be seen from inside: imported before."""


def main(given: dict[str, Any]) -> NoReturn:
    """Shuts itself in and runs the code.

    Args:
        given: `limits`; `source`; `parent`, its process id; `results` and `status`, descriptors to write to; and for
            calls `function` and `arguments`.
    """
    limits = Limits(**given["limits"])
    for name in _LINKED:
        __import__(name)
    libraries, filters = root.library_directories(), calls.program()
    _outlive_nobody(given["parent"])
    kernel.no_new_privileges()
    _separate()
    _in_child(lambda: _as_init(given, limits, libraries, filters), given)


def _as_init(given: dict[str, Any], limits: Limits, libraries: list[str], filters: list[Any]) -> NoReturn:
    _outlive_nobody(0)
    root.enter(libraries, limits.disk_mb)
    _in_child(lambda: _as_code(given, limits, libraries, filters), given)


def _as_code(given: dict[str, Any], limits: Limits, libraries: list[str], filters: list[Any]) -> NoReturn:
    _outlive_nobody(1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _empty_standard_input()
    _limit(limits)
    kernel.drop_capabilities()
    sys.path[:] = [*libraries, *(os.path.join(library, "lib-dynload") for library in libraries)]
    kernel.filter_calls(filters)
    _see_that_it_is_shut(libraries)
    os.write(given["status"], READY)
    os.close(given["status"])
    _run(given)


def _separate() -> None:
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
    for name, text in (("setgroups", "deny"), ("uid_map", f"{NOBODY} {user} 1"), ("gid_map", f"{NOBODY} {group} 1")):
        try:
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
        except OSError as error:
            raise OSError(error.errno, f"{name}: {error.strerror}") from error


def _in_child(then: Callable[[], NoReturn], given: dict[str, Any]) -> NoReturn:
    """Ends as a new process does that does this. SIGTERM kills that one, so that it is reaped here and nowhere else."""
    child = os.fork()
    if child == 0:
        then()

    def kill(_number: int, _frame: object) -> None:
        os.kill(child, signal.SIGKILL)

    signal.signal(signal.SIGTERM, kill)
    for descriptor in (0, 1, 2, given["results"], given["status"]):
        os.close(descriptor)  # the parent reads until nobody holds the other end
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)


def _outlive_nobody(parent: int) -> None:
    kernel.die_with_parent()
    if os.getppid() != parent:  # it had ended before that was asked for
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


def _see_that_it_is_shut(libraries: list[str]) -> None:
    """Tries what must not work. Raises RuntimeError where it does."""
    seen = {f"/{name}" for name in os.listdir("/")}
    if extra := seen - {root.WORK, *("/" + library.split("/")[1] for library in libraries)}:
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
        raise RuntimeError(f"isolation is not complete: {what} can be had")
    if os.getpid() != 2:
        raise RuntimeError("isolation is not complete: no process namespace of its own")


def _run(given: dict[str, Any]) -> NoReturn:
    """Runs the source, and calls its function with each of the arguments; from here on nothing is trusted."""
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
    except BaseException as error:  # the boundary to code that nobody here wrote
        code = 1
        import traceback  # only now: most runs need none, and it takes a third of the time to start

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
        except Exception as error:  # one failed call is no reason to skip the others
            answer = json.dumps({"error": f"{type(error).__name__}: {error}"[:300]})
        os.write(results, answer.encode() + b"\n")


def start() -> NoReturn:
    """Reads the order from standard input. What is wrong before the code runs is said on standard error."""
    try:
        main(cast("dict[str, Any]", json.load(sys.stdin)))
    except BaseException as error:  # the boundary of the process: nothing may be run after this
        sys.stderr.write(f"{type(error).__name__}: {error}")
        sys.stderr.flush()
        os._exit(1)
