# pyright: basic
# math-verify ships no types.
"""Compare answers as mathematics, by math-verify: the extra `math`.

It bounds its time by SIGALRM, which only the main thread of a process gets, and not within one operation on large
numbers. So it runs in a process of its own, `python -m rollout.environment.math_answers`: a line in, a line out.
"""

from __future__ import annotations

import atexit
import json
import os
import resource
import subprocess
import sys
from contextlib import suppress
from functools import cache
from threading import Lock, Timer

_MOST_CHARS, _MOST_BYTES = 10_000, 2**32
"""Characters of an answer that are read, from its end, and the memory of the process that reads it."""
_lock = Lock()


def same_math(text: str, expected: str, *, timeout_s: float) -> bool:
    """Compare as verl's `reward_score/math_verify.py`; an answer that takes longer, or ends the process, is not equal.

    Waits in this thread, and for others that compare.
    """
    answer = ""
    with _lock:
        while (process := _process()).poll() is not None:
            _process.cache_clear()
        assert process.stdin is not None and process.stdout is not None
        timer = Timer(timeout_s, process.kill)
        timer.start()
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps([text[-_MOST_CHARS:], expected]) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        timer.cancel()
        if not answer:
            _end(process)
    return answer == "true\n"


@cache
def _process() -> subprocess.Popen[str]:
    """The process; it ends with this one."""
    process = subprocess.Popen(
        [sys.executable, "-m", "rollout.environment.math_answers"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    atexit.register(_end, process)
    return process


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    with suppress(BrokenPipeError), process:
        pass


def _main() -> None:
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    answers, sys.stdout = sys.stdout, sys.stderr
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, _MOST_BYTES))
    for line in sys.stdin:
        text, expected = json.loads(line)
        try:
            truths = parse(f"\\boxed{{{expected}}}", (LatexExtractionConfig(),))
            found = parse(text, (ExprExtractionConfig(), LatexExtractionConfig()))
            same = any(verify(truth, each) for truth in truths for each in found)
        except Exception:  # the boundary of a library that reads what a policy wrote
            same = False
        answers.write(json.dumps(same) + "\n")
        answers.flush()


if __name__ == "__main__":
    _main()
