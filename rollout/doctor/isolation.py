"""Two leases side by side: whatever one does, the other must not see.

Everything is a comparison of answers. `observe` reads in lease B, writes in lease A, and reads in B again; then it
makes B's writes. A read that answers differently although only A did something is a leak. A counter that goes on in B
where A left off is one, too. What is seen in A and not in B is kept apart; what is seen nowhere is not there as far as
these calls can tell. An error is no evidence: only where a call that was answered is refused from then on, or the other
way round, and twice, has something changed.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import anyio

from gateway.leases.session import Session
from gateway.types import canonical_json
from rollout.doctor.answers import Answer, ask, differ
from rollout.doctor.plan import Plan, ProbeCall


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
    waited: dict[str, float] = field(default_factory=dict[str, float])
    """Seconds that each tool took, all its calls together."""
    answered: set[int] = field(default_factory=set[int])
    """Reads that were answered well at least once, by position."""
    seen_in_a: str = ""
    """How A saw what it did itself."""
    seen_in_b: str = ""
    """How B saw what A did."""

    async def ask(self, session: Session, call: ProbeCall) -> Answer:
        began = time.perf_counter()
        try:
            return await ask(session, call)
        finally:  # also where the probes' time is over
            self.waited[call.tool] = self.waited.get(call.tool, 0.0) + time.perf_counter() - began

    def stable(self, index: int) -> bool:
        """Whether a read answers, and the same when asked again."""
        first, second = self.read_in_b[index]
        return first == second and not first.failed


async def observe(seen: Observation, a: Session, b: Session, plan: Plan, *, pause_s: float) -> None:
    """Play the plan in both leases, and keep in `seen` what they answer.

    Args:
        pause_s: Between the two readings that must agree; a clock that shows seconds moves on in a second.
    """

    async def read(session: Session) -> list[Answer]:
        answers = [await seen.ask(session, call) for call in plan.reads]
        seen.answered.update(index for index, answer in enumerate(answers) if answer.well)
        return answers

    first = await read(b)
    seen.read_in_a = await read(a)
    if plan.reads:
        await anyio.sleep(pause_s)
    seen.read_in_b = list(zip(first, await read(b), strict=True))
    for call in plan.writes:
        seen.written_in_a.append((await seen.ask(a, call), await seen.ask(a, call), await seen.ask(a, call)))
        # After each one: a later call may undo what this one did.
        seen.seen_in_a = seen.seen_in_a or await _own_change(a, plan, seen)
        seen.seen_in_b = seen.seen_in_b or await _foreign_change(b, call, plan, seen)
    # The other way round, so that a tool that reads what another one wrote is called before that one.
    for call in reversed(plan.writes):
        seen.written_in_b.insert(0, (await seen.ask(b, call), await seen.ask(b, call)))


async def _own_change(a: Session, plan: Plan, seen: Observation) -> str:
    for index, call in enumerate(plan.reads):
        before = seen.read_in_a[index]
        if before.failed:
            continue
        now = await _now(a, index, before, plan, seen)
        found = planted(plan, call, now) and not planted(plan, call, before)
        # Only what the other lease answers the same was this lease's doing.
        if found or (seen.stable(index) and differ(before, now)):
            return f"{call.tool} went from {before} to {now}"
    return ""


async def _now(session: Session, index: int, before: Answer, plan: Plan, seen: Observation) -> Answer:
    """The answer by now; where it turned to an error or from one, only if it does so twice."""
    call = plan.reads[index]
    now = await seen.ask(session, call)
    if now.refused != before.refused and await seen.ask(session, call) != now:
        return before
    if now.well:
        seen.answered.add(index)
    return now


async def _foreign_change(b: Session, written: ProbeCall, plan: Plan, seen: Observation) -> str:
    for index, call in enumerate(plan.reads):
        before = seen.read_in_b[index][1]
        if before.failed:
            continue
        now = await _now(b, index, before, plan, seen)
        changed = seen.stable(index) and differ(before, now)
        found = planted(plan, call, now) and not planted(plan, call, before)
        if changed or found:
            return f"after {written.tool} in one lease, {call.tool} in another went from {before} to {now}"
    return ""


def planted(plan: Plan, call: ProbeCall, answer: Answer) -> bool:
    """Whether an answer says the plan's word, although its call did not."""
    return plan.word in answer.text and plan.word not in canonical_json(call.arguments)


def slow_tools(observed: Iterable[Observation], *, at_least_s: float) -> list[str]:
    """The tools that the probes waited for, one message each."""
    waited: dict[str, float] = defaultdict(float)
    for observation in observed:
        for tool, seconds in observation.waited.items():
            waited[tool] += seconds
    return [
        f"slow: the probes waited {seconds:.0f} s for {tool} (--call with less to do, or leave it out with tools)"
        for tool, seconds in sorted(waited.items(), key=lambda each: -each[1])
        if seconds >= at_least_s
    ]
