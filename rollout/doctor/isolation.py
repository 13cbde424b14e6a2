"""Two leases side by side: what one of them does, the other must not see.

Every finding is a comparison of answers. `observe` reads in lease B, writes in lease A and reads in B again; then it
makes the writes in B. A read whose answer changes although only A acted is a leak, and so is a counter that continues
in B where A stopped. What changes in A and not in B is isolated; where nothing changes, these calls see no state. An
error is no evidence, with one exception: a call that was answered and is now refused, or the other way round, twice.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio

from gateway.errors import CallTimeout, DeliveryUnknown, GatewayError
from gateway.leases.lease_dir import LEASE_DIR
from gateway.leases.session import Session
from gateway.types import canonical_json
from rollout.doctor.plan import Plan, ProbeCall

_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a probe call: `refused` is an error result, `failed` no answer at all."""

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


def side_by_side(one: Answer, other: Answer) -> tuple[str, str]:
    """Return excerpts of two answers that begin shortly before the first difference."""
    lines = [" ".join(answer.text.split()) for answer in (one, other)]
    alike = next((at for at, (here, there) in enumerate(zip(*lines, strict=False)) if here != there), 0)
    start = max(alike - _SHOWN // 2, 0)
    first, second = (str(Answer(("…" if start else "") + line[start:])) for line in lines)
    return first, second


def differ(one: Answer, other: Answer) -> bool:
    """Whether two answers differ in more than the wording of an error."""
    return one != other and not (one.failed or other.failed) and not (one.refused and other.refused)


async def probe_call(session: Session, call: ProbeCall) -> Answer:
    """Make one call. Failures become answers, and the lease's directory is masked as `${lease.dir}`."""
    directory = "" if session.lease_dir is None else str(session.lease_dir)
    try:
        result = await session.call(call.tool, _with_lease_dir(call.arguments, directory))
    except (CallTimeout, DeliveryUnknown) as error:
        return Answer(error.code, failed=True)
    except GatewayError as error:
        return Answer(str(error), failed=True)
    structured = canonical_json(dict(result.structured)) if result.structured is not None and not result.text else ""
    return Answer(_without_lease_dir(result.text + structured, directory), refused=result.is_error)


def _with_lease_dir(arguments: dict[str, Any], directory: str) -> dict[str, Any]:
    if not directory:
        return arguments
    inside_json = json.dumps(directory)[1:-1]
    return json.loads(json.dumps(arguments).replace(LEASE_DIR, inside_json))


def _without_lease_dir(text: str, directory: str) -> str:
    if directory:
        # An answer may have the path as given, with its links resolved, or only its last part.
        for path in (os.path.realpath(directory), directory, os.path.basename(directory)):
            text = text.replace(path, LEASE_DIR)
    return text


@dataclass(slots=True)
class Observation:
    """The answers of two leases, by the positions of the calls in the plan."""

    read_in_b: list[tuple[Answer, Answer]] = field(default_factory=list[tuple[Answer, Answer]])
    """Two readings before anything was written, with a pause between them."""
    read_in_a: list[Answer] = field(default_factory=list[Answer])
    """Before anything was written."""
    written_in_a: list[tuple[Answer, Answer, Answer]] = field(default_factory=list[tuple[Answer, Answer, Answer]])
    """Three calls in a row: after two, a toggle would be back in its first state."""
    written_in_b: list[tuple[Answer, Answer]] = field(default_factory=list[tuple[Answer, Answer]])
    """Two calls in a row, made in the reverse order of the plan."""
    waited: dict[str, float] = field(default_factory=dict[str, float])
    """Seconds by tool, all its calls together."""
    answered: set[int] = field(default_factory=set[int])
    """Positions of reads that were answered well at least once."""
    seen_in_a: str = ""
    """A change that A saw of its own writes."""
    seen_in_b: str = ""
    """A change that B saw of A's writes."""

    async def call(self, session: Session, call: ProbeCall) -> Answer:
        began = time.perf_counter()
        try:
            return await probe_call(session, call)
        finally:  # also where the time of the probes is over and this call is cancelled
            self.waited[call.tool] = self.waited.get(call.tool, 0.0) + time.perf_counter() - began

    def stable(self, index: int) -> bool:
        """Whether a read answers, and the same when repeated."""
        first, second = self.read_in_b[index]
        return first == second and not first.failed


async def observe(seen: Observation, a: Session, b: Session, plan: Plan, *, pause_s: float) -> None:
    """Make the calls of the plan in both leases, and keep the answers in `seen`.

    Args:
        pause_s: Between the two readings that must agree; a clock that shows seconds advances in a second.
    """

    async def read(session: Session) -> list[Answer]:
        answers = [await seen.call(session, call) for call in plan.reads]
        seen.answered.update(index for index, answer in enumerate(answers) if answer.well)
        return answers

    first = await read(b)
    seen.read_in_a = await read(a)
    if plan.reads:
        await anyio.sleep(pause_s)
    seen.read_in_b = list(zip(first, await read(b), strict=True))
    in_b = [later for _, later in seen.read_in_b]
    for call in plan.writes:
        seen.written_in_a.append((await seen.call(a, call), await seen.call(a, call), await seen.call(a, call)))
        # Read after each write, since a later one may undo what this one did.
        seen.seen_in_a = seen.seen_in_a or await _change(a, seen.read_in_a, plan, seen)
        if not seen.seen_in_b and (change := await _change(b, in_b, plan, seen, where=" in another")):
            seen.seen_in_b = f"after {call.tool} in one lease, {change}"
    # In reverse order, so that a tool that reads what another one wrote is called before that one.
    for call in reversed(plan.writes):
        seen.written_in_b.insert(0, (await seen.call(b, call), await seen.call(b, call)))


async def _change(
    session: Session, earlier: Sequence[Answer], plan: Plan, seen: Observation, *, where: str = ""
) -> str:
    """Repeat the reads, and describe the first whose answer changed; empty where none did."""
    for index, call in enumerate(plan.reads):
        before = earlier[index]
        if before.failed:
            continue
        now = await _answer_now(session, index, before, plan, seen)
        found = planted(plan, call, now) and not planted(plan, call, before)
        # A read that differs between leases or readings anyway shows nothing.
        if found or (seen.stable(index) and differ(before, now)):
            return f"{call.tool}{where} went from {before} to {now}"
    return ""


async def _answer_now(session: Session, index: int, before: Answer, plan: Plan, seen: Observation) -> Answer:
    """Repeat a read; an answer that became an error, or the reverse, counts only if it does so twice."""
    call = plan.reads[index]
    now = await seen.call(session, call)
    if now.refused != before.refused and await seen.call(session, call) != now:
        return before
    if now.well:
        seen.answered.add(index)
    return now


def planted(plan: Plan, call: ProbeCall, answer: Answer) -> bool:
    """Whether an answer contains the plan's word although its call did not."""
    return plan.word in answer.text and plan.word not in canonical_json(call.arguments)


def slow_tools(observed: Iterable[Observation], *, at_least_s: float) -> list[str]:
    """One message for each tool whose calls took longer than `at_least_s` together."""
    waited: dict[str, float] = defaultdict(float)
    for observation in observed:
        for tool, seconds in observation.waited.items():
            waited[tool] += seconds
    return [
        f"slow: the probes waited {seconds:.0f} s for {tool} (--call with less to do, or leave it out with tools)"
        for tool, seconds in sorted(waited.items(), key=lambda each: -each[1])
        if seconds >= at_least_s
    ]
