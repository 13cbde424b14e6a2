"""What answers show about isolation, and what they do not: an error is an answer to nothing."""

from __future__ import annotations

import pytest

from rollout.doctor.isolation import Answer, Observation
from rollout.doctor.plan import Plan, ProbeCall
from rollout.doctor.report import IsolationVerdict
from rollout.doctor.verdict import left_behind, mixed_up, scope_verdict


def no(text: str) -> Answer:
    return Answer(text, refused=True)


def plan(reads: int = 0, writes: int = 0, *, read_only: bool = False) -> Plan:
    return Plan(
        reads=tuple(ProbeCall(tool=f"get_{index}", arguments={}, read_only=read_only) for index in range(reads)),
        writes=tuple(ProbeCall(tool=f"put_{index}", arguments={}) for index in range(writes)),
        withheld=(),
        refused=(),
        only_reads=False,
        word="probe",
    )


def observed(read: Answer | None = None, a: tuple[Answer, ...] = (), b: tuple[Answer, ...] = ()) -> Observation:
    """One read that always answers `read`, and one write that answers `a` thrice in one lease and `b` in the other."""
    seen = Observation()
    if read is not None:
        seen.read_in_a, seen.read_in_b = [read], [(read, read)]
        seen.answered = {0} if read.well else set()
    if a:
        seen.written_in_a, seen.written_in_b = [(a[0], a[1], a[2])], [(b[0], b[1])]
    return seen


YES, OK = Answer("7"), (Answer("stored"),) * 3
LOST, LATER = (no("no 1"), no("no 2"), no("no 3")), (no("no 1"), no("no 2"))


@pytest.mark.parametrize(
    ("made", "seen", "found"),
    [
        (plan(1), observed(YES), IsolationVerdict.STATELESS),
        (plan(1), observed(no("not found")), IsolationVerdict.UNKNOWN),
        (plan(1, 1), observed(YES, OK, OK), IsolationVerdict.STATELESS),
        (plan(1, 1, read_only=True), observed(no("not found"), OK, OK), IsolationVerdict.UNKNOWN),
        (plan(0, 1), observed(a=LOST, b=LATER), IsolationVerdict.UNKNOWN),
        (plan(0, 1), observed(a=(YES, no("twice"), no("twice")), b=(YES, no("twice"))), IsolationVerdict.APART),
    ],
)
def test_calls_that_are_answered_with_errors_alone_show_nothing(
    made: Plan, seen: Observation, found: IsolationVerdict
) -> None:
    assert scope_verdict("shared", made, seen).finding is found


def test_errors_in_other_words_are_no_difference() -> None:
    here, there = no("no such file /tmp/a"), no("no such file /tmp/b")
    assert left_behind(observed(here, OK, OK), observed(there, OK, OK), plan(1, 1)) == ""
    assert left_behind(observed(YES, OK, OK), observed(Answer("8"), OK, OK), plan(1, 1)) != ""
    alike = observed(a=(here,) * 3, b=(here,) * 2)
    assert mixed_up(observed(a=(here,) * 3, b=(there,) * 2), alike, plan(0, 1)) == ""
    alike = observed(a=OK, b=OK)
    assert mixed_up(observed(a=OK, b=(no("taken"),) * 2), alike, plan(0, 1)) != ""
