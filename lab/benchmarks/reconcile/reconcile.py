"""What has to agree at the end: the servers' log, the traces, what was killed, and what is left on the machine."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from lab.benchmarks.faults.plan import Fault, text_of
from lab.benchmarks.reconcile.engine import WINDOW_S
from lab.benchmarks.reconcile.plan import CALLS_OF_A_SCORE, OVER_PIPES, Inside, Storm, lane_of
from mcp_rollout.rollout.evaluation.resume import is_done
from mcp_rollout.rollout.trace.record import StopReason, Trace
from mcp_rollout.rollout.trace.store import read_traces

Line = Mapping[str, Any]
_SHORT = (Inside.FULL, Inside.READ_ONLY, Inside.DESCRIPTORS)
_MOST_REDIRECTS = 2
"""Of one call: it follows one, and the second breaks it."""
_ROLES_SENT_AGAIN = ("reply",)
"""Calls with a number, which may run twice."""
_OUT_OF_STEP = (
    "not a response to this request",
    "bytes after the end",
    "HTTP 20",
    "no answer within",
    "content type ''",
)
_CHANGED = "tools have changed"
_SETTLED_S = 5.0
"""After something was killed, as long as its neighbours may notice."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """What one run came to."""

    trajectories: int
    in_a_world: int
    """Of them that reached a server; the others found none that listened."""
    lost: int
    """Of them without a trace: their process was killed."""
    withdrawn: int
    calls: int
    """Executions of the policy's calls, in the servers' log."""
    faults: Mapping[str, int]
    killed: Mapping[str, int]
    untouched: int
    """Trajectories that met no fault, which are compared with a run without faults."""
    discrepancies: Sequence[str]


@dataclass(frozen=True)
class Disturbance:
    """What may end more than one trajectory."""

    at: float
    seconds: float
    over_http: bool = False
    """Whether it concerns only worlds over HTTP."""
    failures: tuple[str, ...] = ()
    """Texts of the failures that it can cause; all if empty."""


@dataclass(kw_only=True)
class Played:
    """One folder, read."""

    storm: Storm
    folder: Path
    traces: list[Trace] = field(default_factory=list[Trace])

    @classmethod
    def read(cls, folder: Path) -> Played:
        return cls(storm=Storm.read(folder), folder=folder, traces=list(read_traces(folder / "traces")))

    def lines(self, name: str) -> list[Line]:
        path = self.folder / f"{name}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @cached_property
    def log(self) -> list[Line]:
        return self.lines("log")

    @cached_property
    def driver(self) -> list[Line]:
        return self.lines("driver")

    @cached_property
    def inside(self) -> list[Line]:
        return self.lines("inside")

    @cached_property
    def by_trajectory(self) -> dict[str, list[Line]]:
        """What each trajectory did in its world, in order."""
        found: defaultdict[str, list[Line]] = defaultdict(list)
        for line in self.log:
            # Not the lease with which a run lists its tasks: it has no row, and is released like any other.
            if line.get("trajectory") and not line["call"].startswith("none."):
                found[line["trajectory"]].append(line)
        return found

    @cached_property
    def by_trajectory_inside(self) -> dict[str, list[Line]]:
        """What broke in the run's process, by the trajectory that was asked for."""
        found: defaultdict[str, list[Line]] = defaultdict(list)
        for line in self.inside:
            found[line.get("trajectory", "")].append(line)
        return found

    @cached_property
    def disturbances(self) -> list[Disturbance]:
        """What may end more than one trajectory."""
        found = [Disturbance(line["at"], _SETTLED_S) for line in self.driver if line["what"] == "killed"]
        for line in (*self.inside, *self.log):
            if line["what"] == "died":
                found.append(Disturbance(line["at"], _SETTLED_S, over_http=True))
            elif line["what"] == "changed" or line.get("kind") == Inside.READ_ONLY:
                # The gateway of that connection uses the server no more, and the next trace cannot be written.
                ends = (each["at"] for each in self.driver if each["what"] == "ended" and each["at"] > line["at"])
                failures = (_CHANGED,) if line["what"] == "changed" else ()
                found.append(Disturbance(line["at"], next(ends) - line["at"], failures=failures))
            elif line.get("kind") in _SHORT:
                found.append(Disturbance(line["at"], WINDOW_S + _SETTLED_S))
            elif line.get("kind") == Fault.TWICE:
                # The second response of a connection meets the request that is sent on it next.
                found.append(Disturbance(line["at"], _SETTLED_S, over_http=True, failures=_OUT_OF_STEP))
        return found

    def met_a_fault(self, trace: Trace) -> bool:
        """Whether a fault of the plan was this trajectory's own."""
        own = [*self.by_trajectory.get(trace.id, []), *self.by_trajectory_inside.get(trace.id, [])]
        return any(
            line["what"] == "redirected again" or (line["what"] == "fault" and line["kind"] != Inside.CLOCK)
            for line in own
        )

    def was_disturbed(self, trace: Trace) -> bool:
        """Whether something happened meanwhile that may have ended it."""
        lines, failure = self.by_trajectory.get(trace.id, []), str(trace.failure)
        over_http = lane_of(trace.task.task) not in OVER_PIPES
        for each in self.disturbances:
            meanwhile = not lines or (
                each.at <= lines[-1]["at"] + _SETTLED_S and lines[0]["at"] <= each.at + each.seconds
            )
            matches = not each.failures or any(text in failure for text in each.failures)
            if meanwhile and matches and (over_http or not each.over_http):
                return True
        return False


def reconcile(folder: Path, calm: Path | None, *, with_verl: bool = False) -> Found:
    """Hold a run against its own records and, if there is one, a run without faults.

    Args:
        with_verl: Whether to look at verl's training samples, too, which takes a while to import it.
    """
    played = Played.read(folder)
    wrong = [
        *_rows(played),
        *_calls(played),
        *_events(played),
        *_worlds(played),
        *_left(played),
        *_ends(played),
        *(_samples(played) if with_verl else ()),
    ]
    untouched = [trace for trace in played.traces if is_done(trace) and not played.met_a_fault(trace)]
    wrong += [
        f"{_name(trace)}: withdrawn without a fault: {trace.failure}"
        for trace in played.traces
        if not is_done(trace) and not played.met_a_fault(trace) and not played.was_disturbed(trace)
    ]
    if calm is not None:
        wrong += _same(played, untouched, Played.read(calm))
    faults = [*played.log, *played.inside]
    known = {trace.id for trace in played.traces}
    return Found(
        trajectories=len(known | played.by_trajectory.keys()),
        in_a_world=len(played.by_trajectory),
        lost=len(played.by_trajectory.keys() - known),
        withdrawn=sum(not is_done(trace) for trace in played.traces),
        calls=sum(line["what"] == "ran" and _is_own(line["call"]) for line in played.log),
        faults=Counter(line["kind"] for line in faults if line["what"] in ("fault", "changed")),
        killed=Counter(line["kind"] for line in played.driver if line["what"] == "killed"),
        untouched=len(untouched),
        discrepancies=wrong,
    )


def _name(trace: Trace) -> str:
    return f"{trace.task.task} ({trace.id})"


def _is_own(call: str) -> bool:
    """Whether a call is the policy's, and one of its script."""
    return call.rpartition(".")[0].rpartition(".")[2].isdigit()


def _rows(played: Played) -> Iterator[str]:
    """Each row has one trace with an outcome, and each trajectory one trace, unless its process ended too early."""
    done = Counter(trace.task.task for trace in played.traces if is_done(trace))
    for row in played.storm.names:
        if done[row] != 1:
            yield f"{row}: {done[row]} traces with a reward"
    for trajectory, times in Counter(trace.id for trace in played.traces).items():
        if times > 1:
            yield f"{trajectory}: {times} traces"
    unclean = [line for line in played.driver if line["what"] == "ended" and line["status"] not in (0, 1)]
    known = {trace.id for trace in played.traces}
    for trajectory, lines in played.by_trajectory.items():
        # The world may note more after its client is gone, so its first line decides in which run it was.
        ends = [line for line in played.driver if line["what"] == "ended" and line["at"] >= lines[0]["at"]]
        if trajectory not in known and not (ends and ends[0] in unclean):
            yield f"{lines[0].get('row')} ({trajectory}): no trace, and its process was not ended"


def _calls(played: Played) -> Iterator[str]:
    """Each call has one fate."""
    for what, most in (("ran", 1), ("effect", 1)):
        # A lease that was opened in vain is released too: another world each time.
        counted = Counter(
            (line["trajectory"], line["call"], line["world"] if line["row"] == "none" else "")
            for line in played.log
            if line["what"] == what
        )
        for (trajectory, call, _), times in counted.items():
            again = call.split(".")[1].startswith(_ROLES_SENT_AGAIN) or call.endswith(".odd.0")
            if times > most and not (again and (times == 2 or call.endswith(".odd.0"))):
                yield f"{call} ({trajectory}): {what} {times} times"
    redirects = Counter(
        (line["trajectory"], line["call"])
        for line in played.log
        if line["what"] == "redirected again" or line.get("kind") == Fault.MOVED
    )
    for (trajectory, call), times in redirects.items():
        attempts = 2 if call.split(".")[1].startswith(_ROLES_SENT_AGAIN) else 1
        if times > attempts * _MOST_REDIRECTS:
            yield f"{call} ({trajectory}): followed {times - 1} redirects"
    for line in played.log:
        if line["what"] == "elsewhere":
            yield f"{line['call']}: sent to another origin"


def _events(played: Played) -> Iterator[str]:
    """The fates that traces tell are those of the log, and so is the reward."""
    for trace in played.traces:
        lines = played.by_trajectory.get(trace.id, [])
        effects = Counter(line["call"] for line in lines if line["what"] == "effect")
        ran = Counter(line["call"] for line in lines if line["what"] == "ran" and _is_own(line["call"]))
        told: set[str] = set()
        for event in (event for turn in trace.turns for event in turn.tools):
            call = event.arguments.get("id")
            if event.name != "append" or not isinstance(call, str) or call not in _scripted(played.storm, trace):
                continue
            told.add(call)
            if not event.is_error and (event.text != text_of(call) or effects[call] != 1):
                yield f"{_name(trace)}: {call} returned {event.text!r}, and took effect {effects[call]} times"
            cut = trace.stop_reason is StopReason.TIME_LIMIT
            if event.is_error and event.fault is None and is_done(trace) and not cut:
                yield f"{_name(trace)}: {call} returned an error that its world did not give: {event.text[:200]}"
        for call in ran.keys() - told:
            yield f"{_name(trace)}: {call} ran, and the trace does not have it"
        if is_done(trace) and trace.reward is not None:
            right = sum(effects.values()) / CALLS_OF_A_SCORE
            if abs(trace.reward.score - right) > 1e-9:
                yield f"{_name(trace)}: reward {trace.reward.score}, and its world's is {right}"


def _scripted(storm: Storm, trace: Trace) -> set[str]:
    return set(storm.calls(trace.task.task))


def _worlds(played: Played) -> Iterator[str]:
    """A world belongs to one trajectory, or to none if its tools have changed, and is released after its last call.

    Changed tools do not matter to a release, which any world may get.
    """
    trajectories: defaultdict[str, set[str]] = defaultdict(set)
    changed: set[str] = set()
    for line in played.log:
        if line["what"] == "changed":
            changed.add(line["world"])
        elif line["what"] == "ran":
            trajectories[line["world"]].add(line["trajectory"])
            if line["world"] in changed and ".release." not in line["call"]:
                yield f"{line['world']}: used after its tools had changed"
    for world, own in trajectories.items():
        if len(own) > 1:
            yield f"{world}: shared by {', '.join(sorted(own))}"
    for trace in played.traces:
        lines = [line for line in played.by_trajectory.get(trace.id, []) if line["what"] == "ran"]
        if lines and not played.met_a_fault(trace) and not played.was_disturbed(trace):
            roles = [line["call"].split(".")[1] for line in lines]
            if roles.count("release") != 1 or roles[-1] != "release":
                yield f"{_name(trace)}: not released after its last call: {roles[-3:]}"


def _left(played: Played) -> Iterator[str]:
    """Nothing is left in the run's process, nor of it."""
    for line in played.inside:
        if line["what"] == "ended":
            for kind in ("descriptors", "tasks", "children"):
                if line[kind]:
                    yield f"run {line['pid']}: {kind} left: {', '.join(line[kind])}"
    for line in played.driver:
        if line["what"] == "left":
            yield from (f"program left: {program}" for program in line["programs"])
        elif line["what"] == "leased":
            yield f"serve {line['pid']} has {line['leases']} leases left"
        elif line["what"] == "stuck":
            yield f"serve {line['pid']} did not end"
    yield from (f"directory left: {path}" for path in (played.folder / "leases").iterdir())


def _ends(played: Played) -> Iterator[str]:
    """A run ends by itself with 0 or 1, or is killed.

    With 2 where it can write no traces or no server starts, or where `serve` still has the leases of a run that was
    killed just before.
    """
    short = [line["at"] for line in played.inside if line.get("kind") in _SHORT]
    short += [line["at"] for line in played.log if line["what"] == "died"]  # a run cannot begin then
    killed = [line["at"] for line in played.driver if line["what"] == "killed"]
    began = 0.0
    for line in played.driver:
        if line["what"] == "began":
            began = line["at"]
        elif line["what"] == "ended" and line["status"] not in (0, 1):
            reasons = killed if line["status"] < 0 else [*short, *killed]
            since = began if line["status"] < 0 else began - _SETTLED_S
            if not any(since <= at <= line["at"] for at in reasons):
                yield f"a run ended with {line['status']} without a reason"


def _samples(played: Played) -> Iterator[str]:
    """verl gets each trajectory with a reward: its ids and its score, in the same columns as all others."""
    from mcp_rollout.rollout.verl.output import to_outputs

    columns: set[frozenset[str]] = set()
    for trace in filter(is_done, played.traces):
        (sample,) = (output.as_dict() for output in to_outputs(trace, ()))
        columns.add(frozenset((*sample, *sample["extra_fields"])))
        ids = [*sample["prompts"].tolist(), *sample["responses"].tolist()]
        assert trace.reward is not None
        if ids != list(trace.context) or abs(float(sample["rm_scores"].sum()) - trace.reward.score) > 1e-5:
            yield f"{_name(trace)}: verl gets other ids or another score"
    if len(columns) > 1:
        yield f"verl gets samples of {len(columns)} kinds of columns"


def _same(played: Played, untouched: Sequence[Trace], calm: Played) -> list[str]:
    """Trajectories that met no fault are those of a run without faults."""
    reference = {trace.task.task: _essence(calm, trace) for trace in calm.traces}
    found: list[str] = []
    for trace in untouched:
        here, there = _essence(played, trace), reference.get(trace.task.task)
        if there is None or here != there:
            differ = [] if there is None else [key for key in here if here[key] != there[key]]
            found.append(f"{_name(trace)}: differs from a run without faults in {', '.join(differ) or 'everything'}")
    return found


def _essence(played: Played, trace: Trace) -> dict[str, Any]:
    lines = played.by_trajectory.get(trace.id, [])
    return {
        "messages": trace.messages,
        "end": trace.stop_reason,
        "reward": None if trace.reward is None else (trace.reward.score, trace.reward.parts),
        "ids": list(trace.context),
        "marks": [mark for turn in trace.turns for mark in turn.marks],
        # Two calls of a turn run in either order. Its release has a rule of its own (`_worlds`): what breaks between
        # score and release changes nothing of the trajectory.
        "log": sorted(line["call"] for line in lines if line["what"] == "ran" and ".release." not in line["call"]),
    }
