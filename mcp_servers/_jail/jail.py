"""The parent's side of a run: starts the child, reads its output within bounds, and removes every trace of it."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, cast

from mcp_rollout.mcp_servers._jail.child import READY, Limits

_PACKAGES = str(Path(__file__).parents[3])
_CHILD = (
    f"import sys; sys.path.insert(0, {_PACKAGES!r}); from mcp_rollout.mcp_servers._jail.child import start; start()"
)
_CLOSING_S = 5.0
"""Time for a process to end after a signal."""


class JailUnavailable(RuntimeError):
    """This machine cannot isolate code, so nothing was run; the message says what is missing."""


class Ending(StrEnum):
    FINISHED = "finished"
    FAILED = "failed"
    """Ended with an exception or an exit status."""
    CPU_TIME = "cpu time limit"
    WALL_TIME = "time limit"
    OUTPUT = "output limit"
    KILLED = "killed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """The outcome of a run."""

    ending: Ending
    output: str
    """Standard output and error, interleaved as written."""
    results: list[dict[str, Any]]
    """For each call in order: `value` or `error`; shorter than the calls if the run ended before the last one."""


def run(source: str, limits: Limits, *, function: str | None = None, arguments: Sequence[Sequence[Any]] = ()) -> Run:
    """Runs `source` in an isolated process, and then calls `function` with each of the arguments.

    Blocks for at most `start_s + wall_s` and a few seconds. Leaves no process and no file.

    Raises:
        JailUnavailable: The kernel refused a part of the isolation; no line of the source was run.
    """
    if sys.platform != "linux":
        raise JailUnavailable(f"running code needs Linux; this is {sys.platform}")
    order = {
        "limits": limits._asdict(),
        "source": source,
        "function": function,
        "arguments": [list(given) for given in arguments],
        "parent": os.getpid(),
    }
    with _Child(order) as child:
        ending = child.read(limits)
        received = child.received
    output = received["output"].decode(errors="replace")
    if bytes(received["status"]) != READY:
        raise JailUnavailable(
            f"this machine cannot isolate code, so none is run ({output.strip()[-300:] or ending}). Needed: user "
            "namespaces without root, with mount, pid and network namespaces in them, and seccomp filters; containers "
            "often forbid them"
        )
    return Run(ending=ending, output=output, results=_results(received["results"]))


class _Child:
    """The child process and its pipes. Leaving the block kills it and all processes that it started."""

    def __init__(self, order: dict[str, Any]) -> None:
        self._order = order
        self._pipes: dict[int, str] = {}
        self.received = {name: bytearray() for name in ("output", "results", "status")}

    def __enter__(self) -> _Child:
        theirs: dict[str, int] = {}
        try:
            for name in self.received:
                read, theirs[name] = os.pipe()
                self._pipes[read] = name
            order = self._order | {"results": theirs["results"], "status": theirs["status"]}
            # A file in memory, because a pipe blocks when it is full.
            with open(os.memfd_create("order"), "w+b") as given:
                given.write(json.dumps(order).encode())
                given.seek(0)
                self._process = subprocess.Popen(
                    [sys.executable, "-s", "-S", "-P", "-B", "-X", "utf8", "-c", _CHILD],
                    stdin=given,
                    stdout=theirs["output"],
                    stderr=theirs["output"],
                    pass_fds=(theirs["results"], theirs["status"]),
                    env={"PYTHONHASHSEED": "0"},  # makes the order of sets, and so the code's behaviour, reproducible
                    cwd="/",
                    start_new_session=True,
                )
        except BaseException:  # cleanup, also on Ctrl-C: `__exit__` is not called then
            self._close_pipes()
            raise
        finally:
            for descriptor in theirs.values():
                os.close(descriptor)
        return self

    def read(self, limits: Limits) -> Ending:
        """Reads until all writers have closed their ends or a limit is reached."""
        deadline, begun = time.monotonic() + limits.start_s, False
        with selectors.DefaultSelector() as selector:
            for descriptor, name in self._pipes.items():
                selector.register(descriptor, selectors.EVENT_READ, name)
            while selector.get_map():
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if not ready:
                    return Ending.WALL_TIME
                for key, _ in ready:
                    kept = self.received[key.data]
                    chunk = os.read(key.fd, 65536)
                    kept += chunk[: limits.output_bytes - len(kept)]
                    if not chunk:
                        selector.unregister(key.fd)
                    elif len(kept) >= limits.output_bytes:
                        return Ending.OUTPUT
                if self.received["status"] and not begun:
                    begun, deadline = True, time.monotonic() + limits.wall_s
        return _ending(self._wait())

    def __exit__(self, *_: object) -> None:
        try:
            if self._process.poll() is None:
                self._process.terminate()  # it kills and reaps the init, and so the namespace
                self._wait()
        finally:
            self._close_pipes()

    def _wait(self) -> int:
        try:
            return self._process.wait(_CLOSING_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            return self._process.wait(_CLOSING_S)

    def _close_pipes(self) -> None:
        for descriptor in self._pipes:
            os.close(descriptor)


def _ending(code: int) -> Ending:
    match code:
        case 0:
            return Ending.FINISHED
        case _ if code in (128 + signal.SIGKILL, 128 + signal.SIGXCPU):
            return Ending.CPU_TIME
        case _ if code < 0 or code > 128:
            return Ending.KILLED
        case _:
            return Ending.FAILED


def _results(lines: bytes | bytearray) -> list[dict[str, Any]]:
    """The child's results up to the first malformed line, because the code can write to the pipe as well."""
    results: list[dict[str, Any]] = []
    for line in bytes(lines).split(b"\n")[:-1]:
        try:
            answer: Any = json.loads(line)
        except (ValueError, RecursionError):
            break
        if not isinstance(answer, dict):
            break
        results.append(cast("dict[str, Any]", answer))
    return results
