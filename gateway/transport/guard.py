"""Run as a script in the child, before the server: die with the parent, take the limits, then become the server.

`python -I -S guard.py PARENT_PID LIMITS COMMAND ARGS...` asks Linux for SIGKILL when the parent dies and replaces
itself by the command. LIMITS is `NAME=SOFT:HARD,...`, names as in `resource` without `RLIMIT_`, or `-`. A `preexec_fn`
could do the same, but it forks the whole trainer, page tables and all, and runs Python in a process with half its
threads missing. The signal follows the death of the *thread* that started the child: start servers from the thread
whose event loop lives as long as the worker.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, limits, command = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # the parent died before it could be watched
    if limits != "-":
        limit(limits)
    # The interpreter ignores these, and an ignored signal stays ignored in the program that replaces it.
    for name in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(name, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        os._exit(127)


def limit(limits: str) -> None:
    import resource  # costs a little, and most servers have no limits

    for item in limits.split(","):
        name, _, values = item.partition("=")
        number = getattr(resource, f"RLIMIT_{name}")
        _, highest = resource.getrlimit(number)
        wanted = [int(value) for value in values.split(":")]
        soft, hard = wanted if highest == resource.RLIM_INFINITY else [min(value, highest) for value in wanted]
        resource.setrlimit(number, (soft, hard))


if __name__ == "__main__":
    main()
