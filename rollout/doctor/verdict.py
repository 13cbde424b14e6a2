"""What the answers of two leases, and of two scopes, show about isolation."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from gateway.types import Scope
from rollout.doctor.isolation import Answer, Observation, differ, planted, side_by_side
from rollout.doctor.plan import Plan
from rollout.doctor.report import Determinism, Isolation, IsolationVerdict

LEAKS, APART = IsolationVerdict.LEAKS, IsolationVerdict.APART
STATELESS, UNKNOWN = IsolationVerdict.STATELESS, IsolationVerdict.UNKNOWN


@dataclass(frozen=True, slots=True)
class ScopeProbe:
    """The probes under one scope; `observation` is None where they took too long."""

    plan: Plan
    observation: Observation | None
    isolation: Isolation


def scope_verdict(scope: str, plan: Plan, seen: Observation) -> Isolation:
    """What an observation shows about one scope."""
    verdict, evidence = _verdict(scope, plan, seen)
    return Isolation(scope=scope, finding=verdict, evidence=evidence)


def _verdict(scope: str, plan: Plan, seen: Observation) -> tuple[IsolationVerdict, str]:
    if seen.seen_in_b:
        return LEAKS, seen.seen_in_b
    writes = list(zip(plan.writes, seen.written_in_a, seen.written_in_b, strict=True))
    for call, in_a, in_b in writes:
        if counting([*in_a, *in_b]):
            return LEAKS, f"{call.tool} counts on from one lease to the next: {in_a[2]}, then {in_b[0]}"
    if seen.seen_in_a:
        return APART, f"{seen.seen_in_a} where it was written, and nothing changed in another lease"
    for call, in_a, in_b in writes:
        if in_a[:2] == in_b and differ(in_a[0], in_a[1]):
            return APART, f"{call.tool} started over in each lease: {in_a[0]}, {in_a[1]}"
    verdict, evidence = _verdict_without_changes(plan, seen)
    if verdict is STATELESS and (unlike := _differing_read(scope, plan, seen)):
        return UNKNOWN, unlike
    return verdict, evidence


def _differing_read(scope: str, plan: Plan, seen: Observation) -> str:
    """Describe a read that answers two leases differently, whatever its annotation; empty where there is none.

    Between leases that share nothing a clock differs, too, so that only a read that may be a counter is reported there.
    """
    for index, call in enumerate(plan.reads):
        first, later = seen.read_in_b[index]
        in_a = seen.read_in_a[index]
        if differ(first, in_a) and (scope == Scope.SHARED or counting([first, in_a, later])):
            annotated = ", though annotated read-only" if call.read_only else ""
            here, there = side_by_side(first, in_a)
            return f"{call.tool} answered {here} in one lease and {there} in another{annotated}"
    return ""


def _verdict_without_changes(plan: Plan, seen: Observation) -> tuple[IsolationVerdict, str]:
    """Tell a server without state from calls that could not show its state."""
    if plan.only_reads and not plan.writes and (plan.reads or plan.refused):
        return STATELESS, "every tool is annotated read-only"
    if plan.withheld and not plan.writes:
        return UNKNOWN, f"{_names(plan.withheld)} may write, and no call was allowed"
    if plan.refused:
        return UNKNOWN, f"the schema refuses the probe's arguments: {plan.refused[0]}"
    if unanswered := _unanswered(plan, seen):
        index = unanswered[0]
        error = f"{plan.reads[index].tool} was answered with an error: {seen.read_in_b[index][0]}"
        return UNKNOWN, f"{error}; that shows nothing"
    if not plan.writes:
        if plan.reads and all(_fixed(seen, index) for index in range(len(plan.reads))):
            return STATELESS, f"{_names([call.tool for call in plan.reads])} answered alike in every lease"
        return UNKNOWN, "its answers vary, and there is no tool to write with"
    if refused := uninformative(plan, seen):
        return UNKNOWN, f"{_names(refused)} refused the probe's arguments"
    if plan.withheld:
        return UNKNOWN, f"no change was seen, but {_names(plan.withheld)} may write, and no call was allowed"
    for call, in_a, in_b in zip(plan.writes, seen.written_in_a, seen.written_in_b, strict=True):
        if in_a[:2] != in_b:
            return UNKNOWN, f"{call.tool} answered {in_a[0]} in one lease and {in_b[0]} in another"
    return STATELESS, f"{_names([call.tool for call in plan.writes])} changed no later answer, in any lease"


def _unanswered(plan: Plan, seen: Observation) -> list[int]:
    """Reads that were answered with errors only; without writes, those annotated read-only do not matter."""
    return [
        index
        for index, call in enumerate(plan.reads)
        if index not in seen.answered and (plan.writes or not call.read_only)
    ]


def uninformative(plan: Plan, seen: Observation) -> list[str]:
    """The tools whose calls show nothing because all were answered with errors."""
    refused = [
        call.tool
        for call, answers in zip(plan.writes, seen.written_in_a, strict=True)
        if not any(answer.well for answer in answers)
    ]
    return [*refused, *(plan.reads[index].tool for index in _unanswered(plan, seen))]


def counting(answers: Sequence[Answer]) -> bool:
    """Whether consecutive answers differ only in numbers, which increase by one each time."""
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


def own_verdict(shared: ScopeProbe | None, own: ScopeProbe) -> Isolation:
    """The verdict on the strongest scope, with what the comparison to `shared` adds."""
    found = own.isolation
    if shared is None or found.finding is LEAKS or not (shared.observation and own.observation):
        return found
    if left := left_behind(shared.observation, own.observation, own.plan):
        return replace(found, finding=LEAKS, evidence=left)
    if found.finding is STATELESS and _shared_counter(shared.observation, own.observation, own.plan):
        # The server has state after all, and each lease its own.
        return replace(found, finding=APART, evidence="what counts on when shared started over in each lease")
    return found


def shared_verdict(shared: ScopeProbe | None, own: ScopeProbe) -> Isolation | None:
    """The verdict on scope `shared`, with what the comparison to the strongest scope adds; None where unsharable."""
    if shared is None:
        return None
    found = shared.isolation
    if found.finding is LEAKS or not (shared.observation and own.observation):
        return found
    leak = mixed_up(shared.observation, own.observation, own.plan)
    if leak := leak or _shared_counter(shared.observation, own.observation, own.plan):
        return replace(found, finding=LEAKS, evidence=leak)
    if found.finding is STATELESS:
        for call, here, there in zip(
            own.plan.writes, shared.observation.written_in_b, own.observation.written_in_b, strict=True
        ):
            if differ(here[0], there[0]):
                evidence = f"{call.tool} in a second lease answers {here[0]} or {there[0]}, by scope"
                return replace(found, finding=UNKNOWN, evidence=evidence)
    return found


def left_behind(shared: Observation, own: Observation, plan: Plan) -> str:
    """Describe what writes under scope `shared` left for later leases of another scope; empty where nothing was.

    The processes or sessions of the other scope are new; both plans have the same word and the same calls.
    """
    if not plan.writes:
        return ""
    for index, call in enumerate(plan.reads):
        before, after = shared.read_in_b[index][0], own.read_in_b[index][0]
        if planted(plan, call, after):
            return f"{call.tool} still reads what earlier leases wrote: {after}"
        # A read that differs between leases of one scope shows nothing about two scopes.
        if _fixed(shared, index) and _fixed(own, index) and differ(before, after):
            return f"{call.tool} still reads what earlier leases wrote: {before} became {after}"
    return ""


def mixed_up(shared: Observation, own: Observation, plan: Plan) -> str:
    """Describe a write that answers two leases differently only when they share the server; empty without one."""
    for index, call in enumerate(plan.writes):
        in_a, in_b = shared.written_in_a[index], shared.written_in_b[index]
        alike = own.written_in_a[index][:2] == own.written_in_b[index]
        unlike = any(differ(one, another) for one, another in zip(in_a, in_b, strict=False))
        if alike and unlike and not any(answer.failed for answer in (*in_a, *in_b)):
            return f"{call.tool} answers {in_a[0]}, and another lease {in_b[0]}, which kept apart answers the same"
    return ""


def _shared_counter(shared: Observation, own: Observation, plan: Plan) -> str:
    """Describe a read that counts on from lease to lease when shared, and starts over when apart; empty without one."""
    for index, call in enumerate(plan.reads):
        first, later = shared.read_in_b[index]
        in_a = shared.read_in_a[index]
        apart, after = own.read_in_b[index]
        if counting([first, in_a, later]) and apart == own.read_in_a[index] and differ(apart, after):
            here, there = side_by_side(first, in_a)
            return f"{call.tool} counts on from one lease to the next: {here}, then {there}"
    return ""


def determinism(shared: ScopeProbe | None, own: ScopeProbe) -> Determinism | None:
    """Compare the reads of two fresh leases, and the first writes of two scopes before which nothing was written."""
    if own.observation is None:
        return None
    first, second = own.observation.read_in_a, own.observation.read_in_b
    pairs = [(call.tool, a, b[1]) for call, a, b in zip(own.plan.reads, first, second, strict=True)]
    if shared is not None and shared.observation is not None:
        written = zip(own.plan.writes, shared.observation.written_in_a, own.observation.written_in_a, strict=True)
        pairs += [(call.tool, here[0], there[0]) for call, here, there in written]
    # Errors are not compared.
    pairs = [(tool, one, other) for tool, one, other in pairs if one.well and other.well]
    if not pairs:
        return None
    differing = dict.fromkeys(tool for tool, one, other in pairs if one != other)
    return Determinism(called=tuple(dict.fromkeys(tool for tool, _, _ in pairs)), differing=tuple(differing))


def _names(tools: Sequence[str]) -> str:
    unique = list(dict.fromkeys(tools))
    shown = ", ".join(unique[:3])
    return shown if len(unique) <= 3 else f"{shown} and {len(unique) - 3} more"
