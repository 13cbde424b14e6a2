"""Hold what a client reported against what its server logged."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lab.benchmarks.faults.plan import REFUSED, text_of
from lab.benchmarks.faults.workload import CallReport, Task, TrajectoryReport


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What one run of one client came to."""

    trajectories: int
    calls: int
    """Calls of which the client reported an end."""
    faults: int
    twice: int
    """Calls that ran more than once."""
    foreign: int
    """Results that are not the call's own."""
    lost: int
    """Trajectories that the client did not finish."""
    other_state: int
    """Trajectories that it finished, with a state at the end that a run without faults does not have."""
    silent: int
    """Trajectories that it finished though a result is another call's, or a call with a result is not in that state
    exactly once: no error told the policy."""
    errors: int
    """Calls that it reported as error results, which a policy reads."""
    unread: int
    """Trajectories that it finished, in which calls ran under a definition that had changed since it read it."""
    elsewhere: int
    """Calls that the client sent to another origin."""
    recover_s: float | None
    """From a fault to the next result in the same place of the batch: median; None if it never came."""
    slowest_s: float | None
    hangs: int
    """Trajectories with a call, or a closing, that the deadline of the benchmark ended."""
    problems: Mapping[str, int]
    """Why trajectories were lost."""

    @property
    def is_clean(self) -> bool:
        """Whether nothing happened that a run without faults does not have."""
        return not (
            self.twice or self.foreign or self.lost or self.other_state or self.errors or self.hangs or self.elsewhere
        )


def read_log(lines: Iterable[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines]


def read_reports(text: str) -> list[TrajectoryReport]:
    return [
        TrajectoryReport(**{**made, "calls": [CallReport(**call) for call in made["calls"]]})
        for made in json.loads(text)
    ]


def judge(task: Task, log: Sequence[Mapping[str, Any]], reports: Sequence[TrajectoryReport]) -> Figures:
    """The figures of one run."""
    ran = Counter(line["call"] for line in log if line["what"] == "ran")
    faults = [line for line in log if line["what"] == "fault"]
    calls = [call for report in reports for call in report.calls]
    recoveries = [_recovered(fault, calls) for fault in faults]
    recovered = [seconds for seconds in recoveries if seconds is not None]
    finished = [report for report in reports if report.whole]
    unread = {_trajectory(line["call"]) for line in log if line["what"] == "ran" and line["unread"]}
    ends = {_trajectory(line["call"]): line["done"] for line in log if line["what"] == "effect"}
    return Figures(
        trajectories=task.trajectories,
        calls=len(calls),
        faults=len(faults),
        twice=sum(times > 1 for times in ran.values()),
        foreign=sum(map(_is_foreign, calls)),
        lost=task.trajectories - len(finished),
        other_state=sum(
            sorted(ends.get(each.trajectory, ())) != sorted(task.calls_of(each.trajectory)) for each in finished
        ),
        silent=sum(not _is_told(each, ends.get(each.trajectory, ())) for each in finished),
        errors=sum(_is_error(call) for call in calls),
        unread=sum(each.trajectory in unread for each in finished),
        elsewhere=sum(line["what"] == "elsewhere" for line in log),
        recover_s=statistics.median(recovered) if recovered else None,
        slowest_s=max(recovered, default=None),
        hangs=sum(any(call.outcome == "hang" for call in report.calls) for report in reports),
        problems=dict(Counter(report.problem for report in reports if not report.whole)),
    )


def _trajectory(call: str) -> str:
    return call.partition(".")[0]


def _is_error(call: CallReport) -> bool:
    # Some clients hand the text of an error result on as if it were a result.
    return call.outcome == "error" or (call.outcome == "result" and call.text == REFUSED)


def _is_foreign(call: CallReport) -> bool:
    return call.outcome == "result" and not _is_error(call) and call.text != text_of(call.call)


def _is_told(report: TrajectoryReport, state: Sequence[str]) -> bool:
    """Whether a state is what a policy that read these results expects; calls with an error may be in it or not."""
    errors = {call.call for call in report.calls if _is_error(call)}
    times = Counter(state)
    return max(times.values(), default=0) < 2 and all(
        call.call in errors or (times[call.call] == 1 and not _is_foreign(call)) for call in report.calls
    )


def _recovered(fault: Mapping[str, Any], calls: Sequence[CallReport]) -> float | None:
    """Seconds from a fault to its call's own result, or to the result of a call of the same lane that began later.

    None if there was none, as for the last trajectories of a run.
    """
    lanes = {call.lane for call in calls if _trajectory(call.call) == _trajectory(fault["call"])}
    ends = [
        call.ended
        for call in calls
        if call.lane in lanes and call.outcome == "result" and call.ended > fault["at"]
        if call.call == fault["call"] or call.began > fault["at"]
    ]
    return min(ends) - fault["at"] if ends else None
