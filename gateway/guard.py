"""Run as a script in the child, before the server: die with the parent, then become the server.

`python -I -S guard.py PARENT_PID COMMAND ARGS...` asks Linux for SIGKILL when the parent dies and replaces itself by
the command. A `preexec_fn` could do the same, but it forks the whole trainer, page tables and all, and runs Python in
a process with half its threads missing. The signal follows the death of the *thread* that started the child: start
servers from the thread whose event loop lives as long as the worker.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # the parent died before it could be watched
    # The interpreter ignores these, and an ignored signal stays ignored in the program that replaces it.
    for name in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(name, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        os._exit(127)


if __name__ == "__main__":
    main()
