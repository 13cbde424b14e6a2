"""Runs code for many trajectories, and tests submitted functions.

Only the tests' arguments enter the process that runs the code; its answers are compared here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import anyio
import anyio.to_thread

from mcp_rollout.mcp_servers._jail.child import Limits
from mcp_rollout.mcp_servers._jail.jail import Ending, JailUnavailable, Run, run
from mcp_rollout.mcp_servers.kit import ToolError
from mcp_rollout.mcp_servers.sandbox.steps import FUNCTION, Check

T = TypeVar("T")

MAX_SHOWN = 4000
"""Characters of output that the policy reads, the first and the last half of them."""
_MISSING = object()
"""Placeholder for a value that was not returned; equal to no expected value."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    passed: list[bool]
    """For each test."""
    run: Run


def judge(source: str, tests: Sequence[Check], limits: Limits) -> Verdict:
    """Runs the submitted function on each test's argument. Blocks and raises as `run` does."""
    made = run(source, limits, function=FUNCTION, arguments=[[test.argument] for test in tests])
    # With more answers than calls, the code wrote answers itself, so none counts.
    answers = made.results if len(made.results) <= len(tests) else []
    values = [answer.get("value", _MISSING) for answer in answers]
    values += [_MISSING] * (len(tests) - len(values))
    return Verdict(
        passed=[same(value, test.expected) for value, test in zip(values, tests, strict=True)],
        run=made,
    )


class Busy(Exception):
    """No run was started, because all places were taken; the message is for the policy."""


class Runner:
    """Runs code off the event loop, at most `parallel` runs at a time.

    A caller that gets no place in time is refused with `Busy`, so that a call ends well before the gateway's timeout
    however many programs sleep: the wait, and the time of its runs (`Limits.start_s` and `wall_s` each).

    The methods raise ToolError if this machine cannot isolate code; nothing is run then.

    Args:
        parallel: Number of places.
        wait_s: Maximum wait for a place, in seconds.
        limits: Limits of each run.
    """

    def __init__(self, parallel: int, wait_s: float, limits: Limits) -> None:
        self._limits, self._wait_s = limits, wait_s
        self._places = anyio.CapacityLimiter(parallel)
        self._threads = anyio.CapacityLimiter(math.inf)  # the places are the bound
        self._checking = anyio.Lock()
        self._checked = False

    async def check_isolation(self) -> None:
        """Runs an empty program once, so that a reset fails and not a later call. It waits for no place."""
        async with self._checking:
            if not self._checked:
                await self._in_thread(run, "", self._limits)
                self._checked = True

    async def run(self, source: str, own: anyio.Lock) -> Run:
        """Runs a program.

        Args:
            own: The trajectory's lock: a trajectory has one place at a time, however many calls it makes.

        Raises:
            Busy: There was no place.
        """
        return await self._in_place(own, run, source, self._limits)

    async def judge(self, source: str, tests: Sequence[Sequence[Check]], own: anyio.Lock) -> list[Verdict]:
        """Judges each sequence of tests in its own run, one after the other. Arguments and errors as for `run`."""
        return await self._in_place(own, lambda: [judge(source, some, self._limits) for some in tests])

    async def _in_place(self, own: anyio.Lock, function: Callable[..., T], *arguments: Any) -> T:
        async with AsyncExitStack() as held:
            try:
                with anyio.fail_after(self._wait_s):
                    await held.enter_async_context(own)
                    await held.enter_async_context(self._places)
            except TimeoutError:
                raise Busy(f"Not run: all places for runs were taken for {self._wait_s:g} s. Try again.") from None
            # A cancelled request waits here for the end of its run, which so keeps its place until it ends.
            return await self._in_thread(function, *arguments)

    async def _in_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        try:
            return await anyio.to_thread.run_sync(function, *arguments, limiter=self._threads)
        except JailUnavailable as error:
            raise ToolError(str(error)) from error


def same(given: Any, expected: Any) -> bool:
    """Whether two JSON values are equal and of the same types: True differs from 1, and 1.0 from 1."""
    if type(given) is not type(expected):
        return False
    if isinstance(given, list):
        one, other = cast("list[Any]", given), cast("list[Any]", expected)
        return len(one) == len(other) and all(map(same, one, other))
    return given == expected


def run_report(made: Run) -> str:
    """The text that the policy reads about a run."""
    text = made.output
    if len(text) > MAX_SHOWN:
        text = f"{text[: MAX_SHOWN // 2]}\n[... {len(text) - MAX_SHOWN} characters ...]\n{text[-MAX_SHOWN // 2 :]}"
    if made.ending in (Ending.FINISHED, Ending.FAILED):
        return text or "(no output)"
    return f"{text}\n[the run ended: {made.ending}]".lstrip()


def report(verdict: Verdict, tests: Sequence[Check]) -> str:
    """The text that the policy reads about the examples."""
    lines: list[str] = []
    for index, (test, passed) in enumerate(zip(tests, verdict.passed, strict=True)):
        call = f"{FUNCTION}({test.argument!r})"
        if passed:
            lines.append(f"passed: {call}")
            continue
        answer = verdict.run.results[index] if index < len(verdict.run.results) else {}
        given = repr(answer["value"]) if "value" in answer else answer.get("error", f"nothing ({verdict.run.ending})")
        lines.append(f"failed: {call} gave {str(given)[:500]}, not {test.expected!r}")
    if verdict.run.ending is not Ending.FINISHED:
        lines.append(f"The run ended: {verdict.run.ending}.")
    return "\n".join([f"{sum(verdict.passed)} of {len(tests)} examples passed.", *lines])
