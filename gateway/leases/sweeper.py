"""Kill what the servers of a worker leave behind; run as a script beside the worker, which it outlives.

`python -I -S sweeper.py WORKER_PID TOKEN [DIRECTORY]` reads one line for each connection that has ended, `MARK` or
`MARK<TAB>DIRECTORY`: it kills every process that still has that mark in its environment and removes the directory.
Servers and all their descendants inherit the mark, so it finds a grandchild that left its process group, and one that
became a daemon. When the worker ends, however it ends, the same happens for all marks that begin with TOKEN and for
DIRECTORY; then standard output ends. The process that the worker started ends at once, and the sweeper is that one's
child: Ray kills the children of a worker before the worker.
"""

import contextlib
import os
import select
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable

OWNER = b"MCP_ROLLOUT_OWNER="
_GATHER_S = 0.05
_ROUNDS, _PAUSE_S = 50, 0.02
"""A process may fork while it is looked for: look until nothing is found, one second at most."""


def main() -> None:
    if os.fork():
        os._exit(0)
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(name, signal.SIG_IGN)
    worker, token, root = int(sys.argv[1]), sys.argv[2].encode(), sys.argv[3] if len(sys.argv) > 3 else ""
    # The pipe ends with the worker, unless the worker forked and the child holds the other end, too.
    watched = [0]
    if hasattr(os, "pidfd_open"):
        with contextlib.suppress(OSError):
            watched.append(os.pidfd_open(worker))
    buffered = b""
    while lives(worker):
        ready, _, _ = select.select(watched, [], [], 60)
        if 0 not in ready:
            if ready:
                break
            continue
        time.sleep(_GATHER_S)  # many connections end together: one look at all processes serves them
        chunk = os.read(0, 1 << 20)
        if not chunk:
            break
        *lines, buffered = (buffered + chunk).split(b"\n")
        ended = [line.partition(b"\t") for line in lines]
        end({mark for mark, _, _ in ended}.__contains__)
        for _, _, directory in ended:
            if directory:
                remove(os.fsdecode(directory))
    end(lambda mark: mark.startswith(token))
    if root:
        remove(root)


def lives(pid: int) -> bool:
    with contextlib.suppress(OSError):
        os.kill(pid, 0)
        return True
    return False


def end(is_ended: Callable[[bytes], bool]) -> None:
    """Kill every process whose mark `is_ended` accepts."""
    for _ in range(_ROUNDS):
        if not sum(kill_if_marked(int(name), is_ended) for name in os.listdir("/proc") if name.isdigit()):
            return
        time.sleep(_PAUSE_S)


def kill_if_marked(pid: int, is_ended: Callable[[bytes], bool]) -> bool:
    try:
        handle = os.pidfd_open(pid)  # so that the signal cannot reach a later process of the same number
    except OSError:
        return False
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            environment = b"\0" + file.read()
        _, found, rest = environment.partition(b"\0" + OWNER)
        if not found or not is_ended(rest.partition(b"\0")[0]):
            return False
        signal.pidfd_send_signal(handle, signal.SIGKILL)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def remove(directory: str) -> None:
    """Remove a tree, however deep it is, and whatever permissions a server gave to what is in it."""

    def mend(function: object, path: str, _: object) -> None:
        with contextlib.suppress(OSError):
            for each in (os.path.dirname(path), path):
                if not os.path.islink(each):
                    os.chmod(each, stat.S_IRWXU)
            os.unlink(path) if os.path.islink(path) or not os.path.isdir(path) else shutil.rmtree(path, True)

    for _ in range(3):
        try:
            shutil.rmtree(directory, onerror=mend)
        except RecursionError:  # a policy may nest directories deeper than Python's stack reaches
            for command in ("chmod", "-R", "u+rwx"), ("rm", "-rf"):
                subprocess.run([*command, "--", directory], stderr=subprocess.DEVNULL, check=False)
        if not os.path.lexists(directory):
            return


if __name__ == "__main__":
    if not os.path.isdir("/proc/self"):
        end = lambda is_ended: None  # noqa: E731  # elsewhere only directories are removed
    main()
