"""Prepare a Python server's process, then fork it on request; run by path by the server's interpreter.

`python OPTIONS fork_server CONTROL LIFELINE MARK VARYING (-m MODULE | SCRIPT) [ARGS...]` prepares one process, reports
`{"ready": true}`, or why it must not fork, over the socket CONTROL, and forks for each request that it receives there.
A fork gets the environment, directory, limits and standard streams of its request, with what the program itself changed
before, and goes on as a spawned process would. How far the process is prepared:

- If VARYING is the JSON `null`, it runs the program to where it makes its event loop.
- If it is a list, it imports what the program's main module imports, and a fork runs the main module from its first
  line. The list names the variables that differ between leases, and `argv` and `cwd` where the arguments or the working
  directory do. ARGS are the program's arguments; where they differ they are left out, and a fork has its request's.

What was made before the fork is the same in all forks. `fork_watch` finds what must not be the same. The directory
needs nothing but the standard library of Python 3.9 and Linux: the interpreter may be that of another virtual
environment.
"""

import sys

_HERE = sys.path[0]  # this directory, which is in the way of the program's own modules
from fork_loop import Changes, ForkLoop, Mark, end  # noqa: E402
from fork_program import Program, before_first_loop, compile_models, share_memory  # noqa: E402
from fork_rehearsal import rehearse  # noqa: E402
from fork_watch import Watch  # noqa: E402

sys.path.remove(_HERE)

import gc  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import socket  # noqa: E402


def main() -> None:
    control, lifeline = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    mark, varying = Mark(sys.argv[3]), json.loads(sys.argv[4])
    words = 2 if sys.argv[5] == "-m" else 1
    main_module, arguments = sys.argv[5 : 5 + words], sys.argv[5 + words :]
    os.set_inheritable(control.fileno(), False)
    os.set_inheritable(lifeline, False)
    changes, watch = Changes(), Watch(varying or [])
    is_forked = False

    def fork_here() -> list[str]:
        """Report, then serve requests; returns in each fork, with the arguments of its request."""
        nonlocal is_forked
        gc.unfreeze()  # what a program froze is hidden from `compile_models`
        compile_models()
        refused = watch.end()
        if not refused:
            rehearse()
        control.sendmsg([json.dumps({"refused": refused} if refused else {"ready": True}).encode()])
        if refused:
            os._exit(0)
        share_memory()
        arguments = ForkLoop(control, lifeline, mark, changes).serve()
        is_forked = True
        return arguments

    status: object = 1
    problem = "it makes no asyncio event loop"
    try:
        program = Program(main_module, arguments, watch)
        if varying is None:
            before_first_loop(fork_here)
        else:
            program.import_dependencies()
            arguments = fork_here()
        program.run(arguments)
        status = 0
    except SystemExit as ended:
        status = ended.code
    except BaseException as error:  # boundary: before a fork the program is spawned, and says itself why it fails
        problem = f"{type(error).__name__}: {error}"
        if is_forked:
            sys.excepthook(type(error), error, error.__traceback__)
    finally:
        if not is_forked:
            control.sendmsg([json.dumps({"refused": problem}).encode()])
        end(status)


if __name__ == "__main__":
    main()
