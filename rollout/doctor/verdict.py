"""Judge isolation from the answers of leases. Without evidence the verdict is unknown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from mcp_rollout.gateway.types import Scope
from mcp_rollout.rollout.doctor.comparison import Reference, side_by_side
from mcp_rollout.rollout.doctor.isolation import ProbeAnswer, Run, Step
from mcp_rollout.rollout.doctor.plan import Script
from mcp_rollout.rollout.doctor.report import Determinism, Isolation, IsolationVerdict
from mcp_rollout.rollout.doctor.tool_words import Sort

LEAKS, APART = IsolationVerdict.LEAKS, IsolationVerdict.APART
STATELESS, UNKNOWN = IsolationVerdict.STATELESS, IsolationVerdict.UNKNOWN
_REFUSED_BY_US = re.compile(r"\b(EACCES|EPERM|EROFS|permission denied)\b[^/$]*(/[^\s'\",:)]+)", re.I)
"""What a server says that the kernel did not let write outside its throwaway place."""
_NO_STATE = re.compile(r"(^|/)(\.?cache|__pycache__|logs?|\.npm|\.node)(/|$)|\.(log|pyc|lock)$|(^|/)\.", re.IGNORECASE)


@dataclass(kw_only=True, slots=True)
class Visit:
    """What was seen under one scope: a lease, and after it two more that take turns, all in the same place."""

    scope: str
    script: Script
    first: Run = field(default_factory=Run)
    idle: Run = field(default_factory=Run)
    """What the first lease saw when it looked once more after a pause, before there was another one."""
    second: Run = field(default_factory=Run)
    third: Run = field(default_factory=Run)
    foreign: dict[int, ProbeAnswer] = field(default_factory=dict[int, ProbeAnswer])
    """What the second lease was answered with arguments that only the first had, by place in the script."""
    closing: Run = field(default_factory=Run)
    after: Run = field(default_factory=Run)
    """What the third lease saw when it looked once more after `closing`, which is the second one's."""
    changed: tuple[str, ...] = ()
    """Files that the leases changed in the throwaway place."""

    @property
    def runs(self) -> tuple[Run, Run, Run]:
        """Of the whole script, those that may have seen another lease first."""
        return self.second, self.third, self.first

    @property
    def complete(self) -> bool:
        return all(self.has_all(run) for run in self.runs)

    def has_all(self, run: Run) -> bool:
        """Whether all calls of the script were made in this lease."""
        return len(run.steps) == len(self.script.calls)

    @property
    def kept_files(self) -> tuple[str, ...]:
        """Changed files that may hold state: no caches, logs and hidden files of other programs."""
        return tuple(
            name
            for name in self.changed
            if not _NO_STATE.search(PurePosixPath(name).as_posix().removeprefix("home/")) or ".local/share" in name
        )


def isolation_of(visit: Visit, reference: Reference) -> Isolation:
    """The verdict on one scope.

    Args:
        reference: What leases get that see no other lease.
    """
    verdict, evidence = _verdict(visit, reference)
    return Isolation(scope=visit.scope, verdict=verdict, evidence=evidence)


def _verdict(visit: Visit, reference: Reference) -> tuple[IsolationVerdict, str]:
    if leak := leak_in(visit, reference):
        return LEAKS, leak
    if elsewhere := _written_elsewhere(visit, reference):
        return LEAKS, elsewhere
    # After the leaks, which are shown by calls that were made, however many were left.
    if not visit.complete:
        return UNKNOWN, "the calls took too long"
    if unlike := [step for run in visit.runs if (step := reference.unlike_failures(run))]:
        return UNKNOWN, f"{unlike[0].call.name} was answered in some leases only, so what follows cannot be compared"
    script = visit.script
    state = state_in(reference)
    doubt = _doubt(visit, reference)
    if state and (visit.scope == Scope.PROCESS or not doubt):
        # In one process for all, what a tool does that no probe saw at work is seen by no probe.
        return APART, f"{state}, and another lease saw nothing of it"
    if state:
        return UNKNOWN, f"another lease saw nothing of what {state.split(' ', 1)[0]} did, but {doubt}"
    if doubt:
        return UNKNOWN, doubt
    if visit.kept_files:
        return UNKNOWN, f"it wrote {_names(visit.kept_files)}, which no tool was seen to read"
    if wrote := [call.name for call in script.tools.values() if call.sort is Sort.WRITE]:
        return UNKNOWN, f"{_names(wrote)} changed nothing that a tool shows"
    return STATELESS, f"{_names(list(script.tools))} answered, and no call changed a later answer"


def leak_in(visit: Visit, reference: Reference) -> str:
    """Describe an answer that another lease changed; empty where there is none."""
    for run in visit.runs:
        unlike = reference.unlike_failures(run)
        for index, step in enumerate(run.steps):
            if step is unlike:
                break
            if reference.differs(index, step.answer):
                alone, here = side_by_side(reference.run.steps[index].answer, step.answer)
                return f"{step.call.name} answered {here} after calls in another lease, and {alone} without them"
            if _planted(visit.script, step) and not _planted(visit.script, reference.run.steps[index]):
                shown = step.answer.excerpt(max(step.answer.line.find(visit.script.word) - 25, 0))
                return f"{step.call.name} showed what another lease wrote: {shown}"
    return _moved_in(visit, reference)


def _moved_in(visit: Visit, reference: Reference) -> str:
    """Describe a look that changed while only another lease made calls; empty where there is none."""
    opening = visit.script.opening
    if len(visit.idle.steps) < opening or not opening:
        return ""
    idle = [*visit.first.steps[-opening:], *visit.idle.steps]
    last = [*visit.third.steps[-opening:], *visit.after.steps] if visit.after.steps else []
    # Once may be chance, but what removes something is called once.
    for steps, times in ((visit.second.steps, 2), (visit.third.steps, 2), (last, 1)):
        if moved := reference.moved(steps, times, idle):
            before, after = side_by_side(moved[0].answer, moved[1].answer)
            return f"{moved[0].call.name} went from {before} to {after} while only another lease made calls"
    return ""


def foreign_leak(shared: Visit, own: Visit) -> str:
    """Describe a call that works with another lease's id in a shared process only; empty where there is none."""
    for index, answer in shared.foreign.items():
        if answer.well and index in own.foreign and not own.foreign[index].well:
            name = shared.script.calls[index].name
            return f"{name} answered {answer} to what another lease was given; processes apart refuse it"
    return ""


def state_in(reference: Reference) -> str:
    """Describe a call whose answer depends on earlier calls of its lease; empty where there is none."""
    seen: dict[tuple[str, str], int] = {}
    for index, step in enumerate(reference.run.steps):
        key = (step.call.name, step.arguments)
        if (earlier := seen.get(key)) is not None and reference.changed(earlier, index):
            before, after = side_by_side(reference.run.steps[earlier].answer, step.answer)
            return f"{step.call.name} went from {before} to {after}"
        seen[key] = index
    return ""


def _written_elsewhere(visit: Visit, reference: Reference) -> str:
    """Describe a file that a tool writes outside every place that the entry names; empty where there is none."""
    for name, answer in unanswered(visit, reference).items():
        if refusal := _REFUSED_BY_US.search(answer.text):
            return (
                f"{name} writes {refusal[2]}, a file that all its processes share: name a place for it in env or args"
            )
    return ""


def _doubt(visit: Visit, reference: Reference) -> str:
    """Why the calls may have missed something; empty where the probes saw each tool work."""
    script = visit.script
    if script.refused:
        return f"the schema refuses the arguments: {script.refused[0]}"
    if script.withheld:
        name, reason = next(iter(script.withheld.items()))
        return f"{name} was not called: {reason}"
    if silent := unanswered(visit, reference):
        name, answer = next(iter(silent.items()))
        more = f" (and {len(silent) - 1} more tools likewise)" if len(silent) > 1 else ""
        return f"{name} was answered with {answer}{more}; that shows nothing"
    return ""


def unanswered(visit: Visit, reference: Reference) -> dict[str, ProbeAnswer]:
    """Tools none of whose calls was answered well, with an answer; what only looks may fail if something else looks."""
    steps: list[Step] = [*reference.run.steps, *visit.second.steps, *visit.third.steps, *visit.closing.steps]
    well = {step.call.name for step in steps if step.answer.well}
    looked = any(step.answer.well and step.call.sort is Sort.READ for step in steps)
    return {
        step.call.name: step.answer
        for step in reversed(steps)
        if step.call.name not in well
        and not (looked and step.call.sort is Sort.READ)
        and step.call.sort is not Sort.REMOVE
    }


def determinism(reference: Reference) -> Determinism | None:
    """Compare the same calls in fresh leases."""
    called = tuple(dict.fromkeys(step.call.name for step in reference.run.steps if step.answer.well))
    return Determinism(called=called, differing=reference.noisy_tools()) if called else None


def _planted(script: Script, step: Step) -> bool:
    # A tool that repeats its own argument shows nothing of another lease.
    return script.word in step.answer.text and script.word not in step.arguments


def _names(names: Sequence[str]) -> str:
    unique = list(dict.fromkeys(names))
    return ", ".join(unique[:3]) + (f" and {len(unique) - 3} more" if len(unique) > 3 else "")
