"""Run as a script beside the worker: end what its servers leave behind, and outlive it to do so.

`python -I -S sweeper.py WORKER_PID TOKEN [DIRECTORY]` reads one line for every connection that has ended, `MARK` or
`MARK<TAB>DIRECTORY`: every process that still carries that mark in its environment is killed, then the directory is
removed. Servers and whatever they start inherit the mark, so it finds a grandchild that left its process group, and one
that has become a daemon. When the worker ends, in whatever way, the same is done for all marks that begin with
TOKEN and for DIRECTORY.
"""

import contextlib
import os
import select
import shutil
import signal
import stat
import sys
import time

OWNER = b"MCP_ROLLOUT_OWNER="
_ROUNDS, _PAUSE_S = 50, 0.02
"""A process may fork while it is looked for: look until nothing is found, one second at most."""


def main() -> None:
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(name, signal.SIG_IGN)
    worker, token, root = int(sys.argv[1]), sys.argv[2].encode(), sys.argv[3] if len(sys.argv) > 3 else ""
    # The pipe ends with the worker, unless the worker forked and the child holds the other end, too.
    watched = [0]
    if hasattr(os, "pidfd_open"):
        with contextlib.suppress(OSError):
            watched.append(os.pidfd_open(worker))
    buffered = b""
    while os.getppid() == worker:
        ready, _, _ = select.select(watched, [], [], 60)
        if 0 not in ready:
            if ready:
                break
            continue
        chunk = os.read(0, 65536)
        if not chunk:
            break
        *lines, buffered = (buffered + chunk).split(b"\n")
        for line in lines:
            mark, _, directory = line.partition(b"\t")
            end(OWNER + mark + b"\0")
            if directory:
                remove(os.fsdecode(directory))
    end(OWNER + token)
    if root:
        remove(root)


def end(wanted: bytes) -> None:
    """Kill every process whose environment has a variable that begins with `wanted`."""
    for _ in range(_ROUNDS):
        if not sum(kill_if_marked(int(name), wanted) for name in os.listdir("/proc") if name.isdigit()):
            return
        time.sleep(_PAUSE_S)


def kill_if_marked(pid: int, wanted: bytes) -> bool:
    try:
        handle = os.pidfd_open(pid)  # so that the signal cannot reach a later process of the same number
    except OSError:
        return False
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            if b"\0" + wanted not in b"\0" + file.read():
                return False
        signal.pidfd_send_signal(handle, signal.SIGKILL)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def remove(directory: str) -> None:
    """Remove a tree, whatever permissions a server gave to what is in it."""

    def mend(function: object, path: str, _: object) -> None:
        with contextlib.suppress(OSError):
            for each in (os.path.dirname(path), path):
                if not os.path.islink(each):
                    os.chmod(each, stat.S_IRWXU)
            os.unlink(path) if os.path.islink(path) or not os.path.isdir(path) else shutil.rmtree(path, True)

    for _ in range(3):
        shutil.rmtree(directory, onerror=mend)
        if not os.path.lexists(directory):
            return


if __name__ == "__main__":
    if not os.path.isdir("/proc/self"):
        end = lambda wanted: None  # noqa: E731  # elsewhere only directories are tidied up
    main()
