"""Tests of a submitted function. Only arguments go into the process that runs it; its answers are compared here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from mcp_servers._jail.jail import Ending, Run, run
from mcp_servers._jail.limits import Limits
from mcp_servers.sandbox.problems import FUNCTION, Check


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    passed: list[bool]
    """For each test."""
    run: Run

    @property
    def share(self) -> float:
        return sum(self.passed) / len(self.passed)


def judge(source: str, tests: Sequence[Check], limits: Limits) -> Verdict:
    """Runs the function on each test's argument. Blocks as `run` does, and raises what it raises."""
    made = run(source, limits, function=FUNCTION, arguments=[[test.argument] for test in tests])
    # More answers than there were calls are not ours.
    answers = made.results if len(made.results) <= len(tests) else []
    values = [answer.get("value") if "value" in answer else _NOTHING for answer in answers]
    values += [_NOTHING] * (len(tests) - len(values))
    return Verdict(
        passed=[same(value, test.expected) for value, test in zip(values, tests, strict=True)],
        run=made,
    )


def same(given: Any, expected: Any) -> bool:
    """Whether two JSON values are equal and of the same types: True is not 1, and 1.0 is not 1."""
    if type(given) is not type(expected):
        return False
    if isinstance(given, list):
        one, other = cast("list[Any]", given), cast("list[Any]", expected)
        return len(one) == len(other) and all(map(same, one, other))
    return given == expected


def report(verdict: Verdict, tests: Sequence[Check]) -> str:
    """What the policy reads about tests that it may know."""
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


class _Nothing:
    """No value came back; equal to none."""


_NOTHING = _Nothing()
