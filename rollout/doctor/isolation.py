"""Two leases side by side: whatever one does, the other must not see.

Everything is a comparison of answers. `observe` reads in lease B, writes in lease A, and reads in B again; then it
makes B's writes. A read that answers differently although only A did something is a leak. A counter that goes on in B
where A left off is one, too. What is seen in A and not in B is kept apart; what is seen nowhere is not there as far as
these calls can tell. An error is no evidence: only where a call that was answered is refused from then on, or the other
way round, and twice, has something changed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import anyio

from gateway.errors import CallTimeout, DeliveryUnknown, GatewayError
from gateway.lease_dir import LEASE_DIR
from gateway.session import Session
from gateway.types import canonical_json
from rollout.doctor.plan import Plan, ProbeCall
from rollout.doctor.report import Finding, Isolation

_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call came to; `refused` where the tool said no, `failed` where it did not answer."""

    text: str
    refused: bool = False
    failed: bool = False

    @property
    def well(self) -> bool:
        """Whether the tool did what was asked."""
        return not (self.refused or self.failed)

    def __str__(self) -> str:
        line = " ".join(self.text.split())
        return repr(line if len(line) <= _SHOWN else line[: _SHOWN - 1] + "…")


@dataclass(slots=True)
class Observation:
    """The answers of two leases, by the calls' positions in the plan."""

    read_in_b: list[tuple[Answer, Answer]] = field(default_factory=list[tuple[Answer, Answer]])
    """Twice, a pause in between, before anything was written."""
    read_in_a: list[Answer] = field(default_factory=list[Answer])
    """Before anything was written."""
    written_in_a: list[tuple[Answer, Answer, Answer]] = field(default_factory=list[tuple[Answer, Answer, Answer]])
    """Three times in a row: after two, what toggles would be where it was."""
    written_in_b: list[tuple[Answer, Answer]] = field(default_factory=list[tuple[Answer, Answer]])
    """Twice in a row; by position, though made in reverse order."""
    answered: set[int] = field(default_factory=set[int])
    """Reads that were answered well at least once, by position."""
    seen_in_a: str = ""
    """How A saw what it did itself."""
    seen_in_b: str = ""
    """How B saw what A did."""

    def stable(self, index: int) -> bool:
        """Whether a read answers, and the same when asked again."""
        first, second = self.read_in_b[index]
        return first == second and not first.failed


async def ask(session: Session, call: ProbeCall) -> Answer:
    """Make one call; a failure is an answer, too. The path of the lease's directory says nothing about the server."""
    directory = "" if session.lease_dir is None else str(session.lease_dir)
    try:
        result = await session.call(call.tool, _placed(call.arguments, directory))
    except (CallTimeout, DeliveryUnknown) as error:
        return Answer(error.kind, failed=True)
    except GatewayError as error:
        return Answer(str(error), failed=True)
    structured = canonical_json(dict(result.structured)) if result.structured is not None and not result.text else ""
    text = result.text + structured
    for path in _spellings(directory):
        text = text.replace(path, LEASE_DIR)
    return Answer(text, refused=result.is_error)


def _placed(arguments: dict[str, Any], directory: str) -> dict[str, Any]:
    if not directory:
        return arguments
    inside_json = json.dumps(directory)[1:-1]
    return json.loads(json.dumps(arguments).replace(LEASE_DIR, inside_json))


def _spellings(directory: str) -> list[str]:
    """A path as it may stand in an answer: as given, its links resolved, its last part alone."""
    if not directory:
        return []
    return [os.path.realpath(directory), directory, os.path.basename(directory)]


async def observe(a: Session, b: Session, plan: Plan, *, pause_s: float) -> Observation:
    """Play the plan in both leases.

    Args:
        pause_s: Between the two readings that must agree; a clock that shows seconds moves on in a second.
    """
    seen = Observation()

    async def read(session: Session) -> list[Answer]:
        answers = [await ask(session, call) for call in plan.reads]
        seen.answered.update(index for index, answer in enumerate(answers) if answer.well)
        return answers

    first = await read(b)
    seen.read_in_a = await read(a)
    if plan.reads:
        await anyio.sleep(pause_s)
    seen.read_in_b = list(zip(first, await read(b), strict=True))
    for call in plan.writes:
        seen.written_in_a.append((await ask(a, call), await ask(a, call), await ask(a, call)))
        # After each one: a later call may undo what this one did.
        seen.seen_in_a = seen.seen_in_a or await _own_change(a, plan, seen)
        seen.seen_in_b = seen.seen_in_b or await _foreign_change(b, call, plan, seen)
    # The other way round, so that a tool that reads what another one wrote is called before that one.
    for call in reversed(plan.writes):
        seen.written_in_b.insert(0, (await ask(b, call), await ask(b, call)))
    return seen


async def _own_change(a: Session, plan: Plan, seen: Observation) -> str:
    for index, call in enumerate(plan.reads):
        before = seen.read_in_a[index]
        if before.failed:
            continue
        now = await _now(a, index, before, plan, seen)
        planted = _planted(plan, call, now) and not _planted(plan, call, before)
        # Only what the other lease answers the same was this lease's doing.
        if planted or (seen.stable(index) and _differ(before, now)):
            return f"{call.tool} went from {before} to {now}"
    return ""


async def _now(session: Session, index: int, before: Answer, plan: Plan, seen: Observation) -> Answer:
    """The answer by now; where it turned to an error or from one, only if it does so twice."""
    call = plan.reads[index]
    now = await ask(session, call)
    if now.refused != before.refused and await ask(session, call) != now:
        return before
    if now.well:
        seen.answered.add(index)
    return now


def _differ(one: Answer, other: Answer) -> bool:
    """Whether two answers differ in more than the wording of an error."""
    return one != other and not (one.failed or other.failed) and not (one.refused and other.refused)


async def _foreign_change(b: Session, written: ProbeCall, plan: Plan, seen: Observation) -> str:
    for index, call in enumerate(plan.reads):
        before = seen.read_in_b[index][1]
        if before.failed:
            continue
        now = await _now(b, index, before, plan, seen)
        changed = seen.stable(index) and _differ(before, now)
        planted = _planted(plan, call, now) and not _planted(plan, call, before)
        if changed or planted:
            return f"after {written.tool} in one lease, {call.tool} in another went from {before} to {now}"
    return ""


def _planted(plan: Plan, call: ProbeCall, answer: Answer) -> bool:
    """Whether an answer says the plan's word, although its call did not."""
    return plan.word in answer.text and plan.word not in canonical_json(call.arguments)


def judge(scope: str, plan: Plan, seen: Observation) -> Isolation:
    """What an observation shows about a scope."""

    def finding(kind: Finding, evidence: str) -> Isolation:
        return Isolation(scope=scope, finding=kind, evidence=evidence)

    if seen.seen_in_b:
        return finding(Finding.LEAKS, seen.seen_in_b)
    for call, mine, other in zip(plan.writes, seen.written_in_a, seen.written_in_b, strict=True):
        if _counts_on(mine, other):
            counted = f"{call.tool} counts on from one lease to the next: {mine[2]}, then {other[0]}"
            return finding(Finding.LEAKS, counted)
    if seen.seen_in_a:
        return finding(Finding.APART, f"{seen.seen_in_a} where it was written, and nothing changed in another lease")
    for call, mine, other in zip(plan.writes, seen.written_in_a, seen.written_in_b, strict=True):
        if mine[:2] == other and _differ(mine[0], mine[1]):
            return finding(Finding.APART, f"{call.tool} began anew in each lease: {mine[0]}, {mine[1]}")
    return finding(*_unseen(plan, seen))


def _unseen(plan: Plan, seen: Observation) -> tuple[Finding, str]:
    """Nothing showed: because there is nothing, or because the calls could not show it."""
    if plan.only_reads and (plan.reads or plan.refused):
        return Finding.STATELESS, "every tool is annotated read-only"
    if plan.withheld and not plan.writes:
        return Finding.UNKNOWN, f"{_names(plan.withheld)} may write and nobody allowed a call"
    if plan.refused:
        return Finding.UNKNOWN, f"the schema refuses the probe's arguments: {plan.refused[0]}"
    if unanswered := _unanswered(plan, seen):
        index = unanswered[0]
        error = f"{plan.reads[index].tool} was answered with an error: {seen.read_in_b[index][0]}"
        return Finding.UNKNOWN, f"{error}; that shows nothing"
    if not plan.writes:
        fixed = [index for index in range(len(plan.reads)) if _fixed(seen, index)]
        if plan.reads and len(fixed) == len(plan.reads):
            return Finding.STATELESS, f"{_names([call.tool for call in plan.reads])} answered alike in every lease"
        return Finding.UNKNOWN, "its answers vary, and there is no tool to write with"
    refused = unhelpful(plan, seen)
    if refused:
        return Finding.UNKNOWN, f"{_names(refused)} refused the probe's arguments"
    if plan.withheld:
        return Finding.UNKNOWN, f"nothing showed, but {_names(plan.withheld)} may write and nobody allowed a call"
    for call, mine, other in zip(plan.writes, seen.written_in_a, seen.written_in_b, strict=True):
        if mine[:2] != other:
            return Finding.UNKNOWN, f"{call.tool} answered {mine[0]} in one lease and {other[0]} in another"
    return Finding.STATELESS, f"{_names([call.tool for call in plan.writes])} changed no later answer, in any lease"


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


def _counts_on(mine: tuple[Answer, ...], other: tuple[Answer, ...]) -> bool:
    """Whether consecutive answers differ in numbers alone, which go up by one each time."""
    answers = [*mine, *other]
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
        if _planted(plan, call, after):
            return f"{call.tool} still reads what earlier leases wrote: {after}"
        # What differs between leases of one scope says nothing about two.
        if _fixed(shared, index) and _fixed(own, index) and _differ(before, after):
            return f"{call.tool} still reads what earlier leases wrote: {before} became {after}"
    return ""


def mixed_up(shared: Observation, own: Observation, plan: Plan) -> str:
    """A write that answers two leases alike when they are kept apart, and differently when they share."""
    for index, call in enumerate(plan.writes):
        mine, other = shared.written_in_a[index], shared.written_in_b[index]
        alike = own.written_in_a[index][:2] == own.written_in_b[index]
        differ = any(_differ(one, another) for one, another in zip(mine, other, strict=False))
        if alike and differ and not any(answer.failed for answer in (*mine, *other)):
            return f"{call.tool} answers {mine[0]}, and another lease {other[0]}, which kept apart answers the same"
    return ""


def differs_between(one: Observation, other: Observation, plan: Plan) -> str:
    """How the first answers of a second lease depend on the scope; empty where they do not."""
    for call, here, there in zip(plan.writes, one.written_in_b, other.written_in_b, strict=True):
        if _differ(here[0], there[0]):
            return f"{call.tool} in a second lease answers {here[0]} or {there[0]}, by scope"
    return ""


def _names(tools: Sequence[str]) -> str:
    unique = list(dict.fromkeys(tools))
    shown = ", ".join(unique[:3])
    return shown if len(unique) <= 3 else f"{shown} and {len(unique) - 3} more"
