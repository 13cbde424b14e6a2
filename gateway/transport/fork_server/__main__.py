"""Prepare a Python server's process, then fork it on request; run by path by the server's interpreter.

`python OPTIONS fork_server CONTROL LIFELINE MARK POINT (-m MODULE | SCRIPT) [ARGS...]` prepares one process, reports
`{"ready": true}`, or why it cannot be forked, over the socket CONTROL, and forks for each request that it receives
there. A fork gets the variables, directory, limits and standard streams of its request, and goes on as a spawned
process would. POINT is where the program is forked:

- `loop`: it runs to where it makes its event loop.
- `main`: its main module is imported, as `multiprocessing` imports it; each fork runs it, with ARGS of its request.

What was made before the fork is the same in all forks: that this does no harm is the promise of `start: fork`. The
directory needs nothing but the standard library of Python 3.9 and Linux: the interpreter may be that of another virtual
environment.
"""

import sys

_HERE = sys.path[0]  # this directory, which is in the way of the program's own modules
from fork_loop import ForkLoop, Mark, end  # noqa: E402
from fork_program import Program, before_first_loop  # noqa: E402

sys.path.remove(_HERE)

import gc  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import socket  # noqa: E402


def main() -> None:
    control, lifeline = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    mark, point = Mark(sys.argv[3]), sys.argv[4]
    words = 2 if sys.argv[5] == "-m" else 1
    main_module, arguments = sys.argv[5 : 5 + words], sys.argv[5 + words :]
    os.set_inheritable(control.fileno(), False)
    os.set_inheritable(lifeline, False)
    is_forked = False

    def fork_here() -> None:
        """Report, then serve requests; returns in each fork."""
        nonlocal is_forked
        gc.collect()
        gc.freeze()  # as Python advises before a fork: no collection in a fork writes to what is there now
        control.send(b'{"ready": true}')
        given = ForkLoop(control, lifeline, mark).serve()
        is_forked = True
        if point == "main":
            sys.argv[1:] = given

    status: object = 1
    problem = "it makes no asyncio event loop"
    try:
        program = Program(main_module, arguments)
        if point == "main":
            program.run("__mp_main__")
            fork_here()
        else:
            before_first_loop(fork_here)
        program.run("__main__")
        status = 0
    except SystemExit as ended:
        status = ended.code
    except BaseException as error:  # boundary: before a fork the program is spawned, and says itself why it fails
        problem = f"{type(error).__name__}: {error}"
        if is_forked:
            sys.excepthook(type(error), error, error.__traceback__)
    finally:
        if not is_forked:
            control.send(json.dumps({"refused": problem}).encode())
        end(status)


if __name__ == "__main__":
    main()
