"""What the answers of two leases, and of two scopes, show about isolation."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from gateway.types import Scope
from rollout.doctor.answers import Answer, differ, side_by_side
from rollout.doctor.isolation import Observation, planted
from rollout.doctor.plan import Plan
from rollout.doctor.report import Isolation, IsolationVerdict


def judge(scope: str, plan: Plan, seen: Observation) -> Isolation:
    """What an observation shows about a scope."""

    def finding(kind: IsolationVerdict, evidence: str) -> Isolation:
        return Isolation(scope=scope, finding=kind, evidence=evidence)

    if seen.seen_in_b:
        return finding(IsolationVerdict.LEAKS, seen.seen_in_b)
    for call, mine, other in zip(plan.writes, seen.written_in_a, seen.written_in_b, strict=True):
        if counting([*mine, *other]):
            went_on = f"{call.tool} counts on from one lease to the next: {mine[2]}, then {other[0]}"
            return finding(IsolationVerdict.LEAKS, went_on)
    if seen.seen_in_a:
        return finding(
            IsolationVerdict.APART, f"{seen.seen_in_a} where it was written, and nothing changed in another lease"
        )
    for call, mine, other in zip(plan.writes, seen.written_in_a, seen.written_in_b, strict=True):
        if mine[:2] == other and differ(mine[0], mine[1]):
            return finding(IsolationVerdict.APART, f"{call.tool} began anew in each lease: {mine[0]}, {mine[1]}")
    kind, evidence = _unseen(plan, seen)
    if kind is IsolationVerdict.STATELESS and (unlike := _unlike(scope, plan, seen)):
        return finding(IsolationVerdict.UNKNOWN, unlike)
    return finding(kind, evidence)


def _unlike(scope: str, plan: Plan, seen: Observation) -> str:
    """A read that answers two leases differently, whatever its annotation says; empty where there is none.

    Where leases share nothing a clock does that too; there only one that may be counting is.
    """
    for index, call in enumerate(plan.reads):
        first, later = seen.read_in_b[index]
        mine = seen.read_in_a[index]
        if differ(first, mine) and (scope == Scope.SHARED or counting([first, mine, later])):
            annotated = ", though annotated read-only" if call.read_only else ""
            here, there = side_by_side(first, mine)
            return f"{call.tool} answered {here} in one lease and {there} in another{annotated}"
    return ""


def counted(shared: Observation, own: Observation, plan: Plan) -> str:
    """A read that goes on in one lease where another was, when shared, and begins anew where they are apart."""
    for index, call in enumerate(plan.reads):
        first, later = shared.read_in_b[index]
        mine = shared.read_in_a[index]
        anew, after = own.read_in_b[index]
        if counting([first, mine, later]) and anew == own.read_in_a[index] and differ(anew, after):
            here, there = side_by_side(first, mine)
            return f"{call.tool} counts on from one lease to the next: {here}, then {there}"
    return ""


def _unseen(plan: Plan, seen: Observation) -> tuple[IsolationVerdict, str]:
    """Nothing showed: because there is nothing, or because the calls could not show it."""
    if plan.only_reads and not plan.writes and (plan.reads or plan.refused):
        return IsolationVerdict.STATELESS, "every tool is annotated read-only"
    if plan.withheld and not plan.writes:
        return IsolationVerdict.UNKNOWN, f"{_names(plan.withheld)} may write and nobody allowed a call"
    if plan.refused:
        return IsolationVerdict.UNKNOWN, f"the schema refuses the probe's arguments: {plan.refused[0]}"
    if unanswered := _unanswered(plan, seen):
        index = unanswered[0]
        error = f"{plan.reads[index].tool} was answered with an error: {seen.read_in_b[index][0]}"
        return IsolationVerdict.UNKNOWN, f"{error}; that shows nothing"
    if not plan.writes:
        fixed = [index for index in range(len(plan.reads)) if _fixed(seen, index)]
        if plan.reads and len(fixed) == len(plan.reads):
            return (
                IsolationVerdict.STATELESS,
                f"{_names([call.tool for call in plan.reads])} answered alike in every lease",
            )
        return IsolationVerdict.UNKNOWN, "its answers vary, and there is no tool to write with"
    refused = unhelpful(plan, seen)
    if refused:
        return IsolationVerdict.UNKNOWN, f"{_names(refused)} refused the probe's arguments"
    if plan.withheld:
        return (
            IsolationVerdict.UNKNOWN,
            f"nothing showed, but {_names(plan.withheld)} may write and nobody allowed a call",
        )
    for call, mine, other in zip(plan.writes, seen.written_in_a, seen.written_in_b, strict=True):
        if mine[:2] != other:
            return IsolationVerdict.UNKNOWN, f"{call.tool} answered {mine[0]} in one lease and {other[0]} in another"
    return (
        IsolationVerdict.STATELESS,
        f"{_names([call.tool for call in plan.writes])} changed no later answer, in any lease",
    )


def _unanswered(plan: Plan, seen: Observation) -> list[int]:
    """Reads that were answered with errors alone. Where nothing is written, annotated ones show nothing anyway."""
    return [
        index
        for index, call in enumerate(plan.reads)
        if index not in seen.answered and (plan.writes or not call.read_only)
    ]


def unhelpful(plan: Plan, seen: Observation) -> list[str]:
    """The tools whose calls showed nothing, since they were answered with errors."""
    refused = [
        call.tool
        for call, answers in zip(plan.writes, seen.written_in_a, strict=True)
        if not any(answer.well for answer in answers)
    ]
    return [*refused, *(plan.reads[index].tool for index in _unanswered(plan, seen))]


def counting(answers: Sequence[Answer]) -> bool:
    """Whether consecutive answers differ in numbers alone, which go up by one each time."""
    if any(answer.refused or answer.failed for answer in answers):
        return False
    shapes = {re.sub(r"\d+", "#", answer.text) for answer in answers}
    numbers = [[int(digits) for digits in re.findall(r"\d{1,9}", answer.text)] for answer in answers]
    if len(shapes) > 1 or len({len(each) for each in numbers}) > 1:
        return False
    moving = [column for column in zip(*numbers, strict=True) if len(set(column)) > 1]
    return bool(moving) and all(all(later - earlier == 1 for earlier, later in pairwise(column)) for column in moving)


def _fixed(seen: Observation, index: int) -> bool:
    return seen.stable(index) and seen.read_in_a[index] == seen.read_in_b[index][0]


def survives(shared: Observation, own: Observation, plan: Plan) -> str:
    """What writes under one scope left behind for later leases of another, whose processes or sessions are new.

    Both plans have the same word and the same calls.
    """
    if not plan.writes:
        return ""
    for index, call in enumerate(plan.reads):
        before, after = shared.read_in_b[index][0], own.read_in_b[index][0]
        if planted(plan, call, after):
            return f"{call.tool} still reads what earlier leases wrote: {after}"
        # What differs between leases of one scope says nothing about two.
        if _fixed(shared, index) and _fixed(own, index) and differ(before, after):
            return f"{call.tool} still reads what earlier leases wrote: {before} became {after}"
    return ""


def mixed_up(shared: Observation, own: Observation, plan: Plan) -> str:
    """A write that answers two leases alike when they are kept apart, and differently when they share."""
    for index, call in enumerate(plan.writes):
        mine, other = shared.written_in_a[index], shared.written_in_b[index]
        alike = own.written_in_a[index][:2] == own.written_in_b[index]
        unlike = any(differ(one, another) for one, another in zip(mine, other, strict=False))
        if alike and unlike and not any(answer.failed for answer in (*mine, *other)):
            return f"{call.tool} answers {mine[0]}, and another lease {other[0]}, which kept apart answers the same"
    return ""


def differs_between(one: Observation, other: Observation, plan: Plan) -> str:
    """How the first answers of a second lease depend on the scope; empty where they do not."""
    for call, here, there in zip(plan.writes, one.written_in_b, other.written_in_b, strict=True):
        if differ(here[0], there[0]):
            return f"{call.tool} in a second lease answers {here[0]} or {there[0]}, by scope"
    return ""


def _names(tools: Sequence[str]) -> str:
    unique = list(dict.fromkeys(tools))
    shown = ", ".join(unique[:3])
    return shown if len(unique) <= 3 else f"{shown} and {len(unique) - 3} more"
