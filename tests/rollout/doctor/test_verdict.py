"""What answers show about isolation, and what they do not: an error is an answer to nothing."""

from __future__ import annotations

import pytest

from mcp_rollout.gateway.types import ToolDefinition
from mcp_rollout.rollout.doctor.comparison import Reference, side_by_side
from mcp_rollout.rollout.doctor.isolation import ProbeAnswer, Run, Step
from mcp_rollout.rollout.doctor.plan import ProbeCall, Script
from mcp_rollout.rollout.doctor.report import IsolationVerdict
from mcp_rollout.rollout.doctor.tool_words import Sort
from mcp_rollout.rollout.doctor.verdict import Visit, isolation_of

LEAKS, APART = IsolationVerdict.LEAKS, IsolationVerdict.APART
STATELESS, UNKNOWN = IsolationVerdict.STATELESS, IsolationVerdict.UNKNOWN


def call(name: str, sort: Sort) -> ProbeCall:
    tool = ToolDefinition(server="s", name=name, exposed_name=name, description="", input_schema={})
    return ProbeCall(tool=tool, sort=sort)


GET, PUT, COMPUTE = call("get", Sort.READ), call("put", Sort.WRITE), call("compute", Sort.NEUTRAL)


def script(*calls: ProbeCall) -> Script:
    return Script(rounds=(calls,), opening=0, closing=(), withheld={}, refused=(), word="probe")


def run(made: Script, *answers: str) -> Run:
    """`late` is a call that was not answered in time."""
    given = [ProbeAnswer(text, failed=text == "late") for text in answers]
    return Run([Step(each, "{}", answer) for each, answer in zip(made.calls, given, strict=True)])


CELL = script(GET, PUT, GET)


@pytest.mark.parametrize(
    ("made", "alone", "after_another", "found"),
    [
        (CELL, ("nothing", "stored", "probe"), ("nothing", "stored", "probe"), APART),
        (CELL, ("nothing", "stored", "probe"), ("probe", "stored", "probe"), LEAKS),
        (script(COMPUTE, COMPUTE), ("7", "7"), ("7", "7"), STATELESS),
        # A write that nothing shows may be anywhere.
        (CELL, ("nothing", "stored", "nothing"), ("nothing", "stored", "nothing"), UNKNOWN),
        # Errors, also those sent as ordinary text.
        (script(COMPUTE), ("Error: no such column: probe",), ("Error: no such column: probe",), UNKNOWN),
        (script(COMPUTE), ("Database error: no 1",), ("Database error: no 2",), UNKNOWN),
        (script(PUT, PUT), ("Created", "Error: it already exists"), ("Created", "Error: it already exists"), APART),
        (script(PUT, PUT), ("Created", "Error: it already exists"), ("Error: it already exists",) * 2, LEAKS),
    ],
)
def test_a_verdict_follows_from_answers_that_differ(
    made: Script, alone: tuple[str, ...], after_another: tuple[str, ...], found: IsolationVerdict
) -> None:
    others = run(made, *after_another), run(made, *after_another)
    visit = Visit(scope="process", script=made, first=run(made, *alone), second=others[0], third=others[1])
    reference = Reference([visit.first, run(made, *alone)])
    assert isolation_of(visit, reference).verdict is found


@pytest.mark.parametrize(
    ("alone", "after_another", "found"),
    [
        (("nothing", "late", "nothing"), ("nothing", "stored", "probe"), UNKNOWN),
        (("nothing", "stored", "probe"), ("nothing", "late", "nothing"), UNKNOWN),
        (("nothing", "late", "nothing"), ("probe", "stored", "probe"), LEAKS),
    ],
    ids=["late alone", "late after another", "seen before"],
)
def test_what_follows_a_call_that_was_late_in_some_leases_proves_nothing(
    alone: tuple[str, ...], after_another: tuple[str, ...], found: IsolationVerdict
) -> None:
    first, again, second, third = (run(CELL, *answers) for answers in (alone, alone, after_another, after_another))
    visit = Visit(scope="process", script=CELL, first=first, second=second, third=third)
    assert isolation_of(visit, Reference([first, again])).verdict is found


def test_sharing_is_safe_only_if_every_tool_was_seen_at_work() -> None:
    made = script(GET, PUT, GET, COMPUTE)
    answers = ("nothing", "stored", "probe", "Error: invalid expression")
    first, second, third = (run(made, *answers) for _ in range(3))
    visit = Visit(scope="shared", script=made, first=first, second=second, third=third)
    found = isolation_of(visit, Reference([visit.first, run(made, *answers)]))
    assert found.verdict is UNKNOWN and "compute was answered with 'Error: invalid expression'" in found.evidence


def test_what_fresh_leases_answer_differently_is_no_leak() -> None:
    made = script(COMPUTE)
    fresh = [run(made, f"seed 7 {number}") for number in (31, 62)]
    assert not Reference(fresh).differs(0, ProbeAnswer("seed 7 93"))
    assert Reference(fresh).differs(0, ProbeAnswer("seed 8 93"))
    assert not Reference([run(made, "it is 09:15:01 now")]).differs(0, ProbeAnswer("it is 09:15:02 now"))


def test_the_size_of_a_file_that_holds_the_time_is_no_leak() -> None:
    made = script(GET)
    reference = Reference([run(made, "Saved book.xlsx [application/vnd.sheet, 5189 bytes]")] * 2)
    assert not reference.differs(0, ProbeAnswer("Saved book.xlsx [application/vnd.sheet, 5190 bytes]"))
    assert reference.differs(0, ProbeAnswer("Saved other.xlsx [application/vnd.sheet, 5189 bytes]"))


def test_what_only_sometimes_works_is_flaky() -> None:
    made = script(COMPUTE)
    reference = Reference([run(made, "7"), run(made, "Error: timed out")])
    assert reference.flaky == ("compute answered the same call in fresh processes '7', then 'Error: timed out'",)


def test_excerpts_show_the_part_that_differs() -> None:
    here, there = side_by_side(ProbeAnswer("x" * 500 + " plum"), ProbeAnswer("x" * 500 + " pear"))
    assert here.endswith("plum'") and there.endswith("pear'") and len(here) < 80


@pytest.mark.parametrize(("length", "shown"), [(60, "'%s'"), (61, "'%.59s…'")])
def test_an_excerpt_says_where_it_was_cut(length: int, shown: str) -> None:
    text = '{"name": "' + "x" * (length - 10)
    assert str(ProbeAnswer(text)) == side_by_side(ProbeAnswer(text), ProbeAnswer(""))[0] == shown % text
    refusal = "1 validation error for call[look_up]: zone: unknown: name one of the list"
    assert str(ProbeAnswer(refusal, refused=True)) == repr(refusal)
    late = ProbeAnswer("y" * 100 + text)
    here, _ = side_by_side(late, ProbeAnswer("y" * 100))
    assert here.startswith("'…yyy") and here.endswith("…'")
