"""Start a server process that dies with its parent and within its limits; run as a script in the child.

`python -I -S guard.py PARENT_PID LIMITS COMMAND ARGS...` asks Linux for SIGKILL when the parent dies (0 is any parent),
takes LIMITS (`NAME=SOFT:HARD,...`, names as in `resource` without `RLIMIT_`, or `-`) and becomes the command. A
`preexec_fn` could do the same, but it forks the whole trainer, page tables and all, and runs Python in a process with
half its threads missing. The signal follows the death of the *thread* that started the child: start servers from the
thread whose event loop lives as long as the worker.

The rest of the module is the parent's side: it writes LIMITS and explains deaths. Memory is limited by RLIMIT_DATA,
private writable memory, which is what a program fills. RLIMIT_AS would also count address space, of which node, Go and
Java reserve hundreds of megabytes that they never touch. A limit holds for each process of a server, not for their sum.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_GRACE_S = 5
"""Between SIGXCPU, which names the reason, and SIGKILL for a server that ignores it."""
_ABORTS = frozenset({signal.SIGABRT, signal.SIGTRAP, signal.SIGILL, signal.SIGSEGV, signal.SIGBUS})
_OUT_OF_MEMORY = (
    b"out of memory",
    b"cannot allocate",
    b"memoryerror",
    b"bad_alloc",
    b"allocation fail",
    b"can't start new thread",
)
_NEARLY = 0.9
"""Share of the limit from which a process that hangs is taken to lack memory."""


def main() -> None:
    parent, limits, command = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent and os.getppid() != parent:
        os._exit(1)  # the parent died before the signal was requested
    if limits != "-":
        _take(limits)
    # The interpreter ignores these, and an ignored signal stays ignored in the program that replaces it.
    for name in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(name, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        os._exit(127)


def _take(limits: str) -> None:
    import resource  # here, since most servers have no limits and the import takes time in each child

    for item in limits.split(","):
        name, _, values = item.partition("=")
        number = getattr(resource, f"RLIMIT_{name}")
        _, highest = resource.getrlimit(number)
        wanted = [int(value) for value in values.split(":")]
        soft, hard = wanted if highest == resource.RLIM_INFINITY else [min(value, highest) for value in wanted]
        resource.setrlimit(number, (soft, hard))


def rlimits(max_memory_mb: int | None, max_cpu_s: int | None) -> list[tuple[str, int, int]]:
    """Name, soft and hard value of each limit of an entry."""
    limits: list[tuple[str, int, int]] = []
    if max_memory_mb is not None:
        limits.append(("DATA", max_memory_mb << 20, max_memory_mb << 20))
    if max_cpu_s is not None:
        limits.append(("CPU", max_cpu_s, max_cpu_s + _GRACE_S))
    return limits


def guarded(command: list[str], limits: list[tuple[str, int, int]], *, parent: int | None = None) -> list[str]:
    """The command line that runs this module and then `command`, which keeps its pid and pipes.

    Args:
        parent: Pid of the process that starts it, 0 where it is not known yet; this one by default.
    """
    taken = ",".join(f"{name}={soft}:{hard}" for name, soft, hard in limits)
    starter = os.getpid() if parent is None else parent
    return [sys.executable, "-I", "-S", __file__, str(starter), taken or "-", *command]


def out_of_memory(max_memory_mb: int | None, pid: int, stderr: bytes) -> str:
    """Half a sentence where a running process has no memory left by its limit; empty elsewhere."""
    if max_memory_mb is None:
        return ""
    try:
        with open(f"/proc/{pid}/statm") as file:
            pages = int(file.read().split()[5])  # pages of data and stack, which is what RLIMIT_DATA counts
    except (OSError, ValueError, IndexError):
        pages = 0
    full = pages * os.sysconf("SC_PAGE_SIZE") >= _NEARLY * (max_memory_mb << 20)
    return f"it used up its {max_memory_mb} MB of memory" if full or _mentions_memory(stderr) else ""


def exhausted(max_memory_mb: int | None, max_cpu_s: int | None, status: int, stderr: bytes) -> str:
    """What a dead process used up, as half a sentence; empty where no limit of its entry ended it.

    Args:
        status: Exit status, or minus the signal.
    """
    # A shell that ran the server reports its signal as 128 and more.
    number = -status if status < 0 else status - 128
    if max_cpu_s is not None and number == signal.SIGXCPU:
        return f"it used up its {max_cpu_s} s of CPU time"
    if max_memory_mb is not None and status != 0 and (number in _ABORTS or _mentions_memory(stderr)):
        return f"it used up its {max_memory_mb} MB of memory"
    return ""


def _mentions_memory(stderr: bytes) -> bool:
    words = stderr.lower()
    return any(sign in words for sign in _OUT_OF_MEMORY)


if __name__ == "__main__":
    main()
