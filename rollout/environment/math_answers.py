# pyright: basic
# math-verify ships no types.
"""Compare answers as mathematics, by math-verify: the extra `math`.

It bounds its time by SIGALRM, which only the main thread of a process gets, and not within one operation on large
numbers. So this module runs in a process of its own: a line in, a line out.
"""

from __future__ import annotations

import atexit
import json
import os
import resource
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from threading import Timer

_MOST_CHARS, _MOST_BYTES = 10_000, 2**32
"""Characters of an answer that are read, from its end, and the memory of the process that reads it."""
_thread = ThreadPoolExecutor(1, "math")
"""Waits for the process, which compares one answer at a time."""


def same_math(text: str, expected: str, *, timeout_s: float) -> Future[bool]:
    """Compare as verl's `reward_score/math_verify.py`; an answer that takes longer, or ends the process, is not equal.

    `timeout_s` begins when the answers before this one are compared.
    """
    return _thread.submit(_same_math, json.dumps([text[-_MOST_CHARS:], expected]), timeout_s)


def _same_math(line: str, timeout_s: float) -> bool:
    process, answer = _process(), ""
    assert process.stdin is not None and process.stdout is not None
    timer = Timer(timeout_s, process.kill)
    timer.start()
    with suppress(BrokenPipeError):
        print(line, file=process.stdin, flush=True)
        answer = process.stdout.readline()
    timer.cancel()
    if not answer:
        _process.cache_clear()
        _end(process)
    return answer == "true\n"


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    with suppress(BrokenPipeError), process:
        pass


@cache
def _process() -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "mcp_rollout.rollout.environment.math_answers"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    atexit.register(_end, process)
    return process


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
        print(json.dumps(same), file=answers, flush=True)


if __name__ == "__main__":
    _main()
