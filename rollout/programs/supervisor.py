"""Run a program, and leave nothing of it behind; run as a script between the worker and the program.

`python -I -S supervisor.py WORKER_PID CLOSE_S PROCESSES COMMAND ARGS...` has Linux make it the parent of the orphans
among its descendants (PR_SET_CHILD_SUBREAPER), so that what forks, calls `setsid` and drops its environment stays in
its tree. It kills the tree when the program has ended, CLOSE_S seconds after SIGTERM or the worker's death, both of
which it passes on to the program's process group as SIGTERM, and when there are more than PROCESSES at a time. It exits
with the program's status, 128 and more for a signal.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_COUNT_EVERY_S = 1.0
_PAUSE_S = 0.005
"""Between two rounds of SIGKILL: each finds what the one before it has orphaned."""


def main() -> None:
    worker, close_s, most, command = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
    prctl, seen = ctypes.CDLL(None).prctl, {signal.SIGTERM, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, seen)
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != worker:
        os._exit(1)  # the worker died before the signal was requested
    program = os.posix_spawn(command[0], command, os.environ, setpgroup=0, setsigmask=[])
    status, now = None, time.monotonic()
    count_at, kill_at = now + _COUNT_EVERY_S, float("inf")
    while status is None and now < kill_at:
        came = signal.sigtimedwait(seen, max(0.0, min(count_at, kill_at) - now))
        if came is not None and came.si_signo == signal.SIGTERM:
            kill_at = min(kill_at, now + close_s)
            with contextlib.suppress(ProcessLookupError):  # it may have left its group
                os.killpg(program, signal.SIGTERM)
        status, now = reap(program), time.monotonic()
        if status is None and now >= count_at:
            count_at = now + _COUNT_EVERY_S
            if len(descendants(os.getpid())) > most:
                status = 1
                with contextlib.suppress(OSError):  # the worker may have died
                    os.write(1, f"\nit had more than {most} processes\n".encode())
    end_children()
    os._exit(128 + signal.SIGKILL if status is None else status)


def reap(program: int) -> int | None:
    """Reap the children that have ended; the program's exit status if it is one of them, 128 and more for a signal.

    Raises:
        ChildProcessError: there are no children.
    """
    status = None
    while status is None and (ended := os.waitpid(-1, os.WNOHANG))[0]:
        if ended[0] == program:
            code = os.waitstatus_to_exitcode(ended[1])
            status = 128 - code if code < 0 else code
    return status


def end_children() -> None:
    """Kill the children, then those whom they orphan, until there are none.

    A child keeps its number until it is reaped here; another process of the tree might end, and its number be reused.
    """
    with contextlib.suppress(ChildProcessError):
        while True:
            for child in children(os.getpid()):
                with contextlib.suppress(PermissionError):
                    os.kill(child, signal.SIGKILL)
            time.sleep(_PAUSE_S)
            reap(0)


def children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):  # it has ended
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as file:
                found += map(int, file.read().split())
    return found


def descendants(pid: int) -> list[int]:
    found = children(pid)
    for child in found:  # grows meanwhile
        found += children(child)
    return found


if __name__ == "__main__":
    main()
