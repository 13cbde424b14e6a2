"""Batches on which training learns nothing, by name, each with its remedy.

What cannot heal stops training once it has lasted for some batches: no call can be read, every call fails, a limit cuts
every trajectory, every trajectory is withdrawn. What may heal, or be right, is one warning: see `Defect`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import fmean

from mcp_rollout.gateway.types import CallFault
from mcp_rollout.rollout.environment.reward_config import Component, RewardConfig
from mcp_rollout.rollout.errors import StopTraining
from mcp_rollout.rollout.trace.drift import siblings
from mcp_rollout.rollout.trace.events import MarkKind
from mcp_rollout.rollout.trace.outcome import ROUNDING, StopReason
from mcp_rollout.rollout.trace.record import Trace

_LEAST = 8
"""Trajectories, calls or rewards below which nothing is concluded from them."""
_QUOTED = 160
_UNREAD = (MarkKind.MALFORMED_CALL, MarkKind.CALL_IN_THINKING, MarkKind.CUT_CALL, MarkKind.VOID)


class Defect(StrEnum):
    """What is wrong with a batch."""

    NO_CALLS = "no_calls"
    """No turn could be read as a call, and no reward differs from its siblings'."""
    CALLS_FAIL = "calls_fail"
    """Every call failed, and not for mistakes of a policy whose rewards differ."""
    CUT = "cut"
    """One limit ended every trajectory, and no reward differs from its siblings'."""
    WITHDRAWN = "withdrawn"
    """Every trajectory was withdrawn."""
    TIED = "tied"
    """Each group has one reward, below the best."""
    CONSTANT = "constant"
    """A weighted component, or what a judge says, is the same in every trajectory."""
    UNEARNED = "unearned"
    """The rewarded trajectories have no call that succeeded."""

    @property
    def heals(self) -> bool:
        return self not in (Defect.NO_CALLS, Defect.CALLS_FAIL, Defect.CUT, Defect.WITHDRAWN)

    @property
    def patience(self) -> int:
        """Batches in a row after which it is reported, twice as many if it was not there from the first one on: batches
        of a hard task may be tied by chance."""
        return 2 if self in (Defect.TIED, Defect.CONSTANT) else 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """What is examined of one finished trajectory."""

    group: Hashable
    """Identical for siblings."""
    ended: StopReason | None
    failure: str
    """`kind: message` of what withdrew it; empty if it was not."""
    score: float
    """0 if it was withdrawn."""
    best: float
    """The highest score that its weights allow with components of at most 1, or its own where that is higher, as where
    turns have rewards; 0 where nothing has a weight."""
    components: dict[str, float] = field(default_factory=dict[str, float])
    """Those with a weight, by name."""
    judged: frozenset[str] = frozenset()
    """Those of them that a model judges."""
    turns: int
    calls: int
    """Those that could be read."""
    errors: int
    """Those of them that failed."""
    mistakes: int = 0
    """Those of these that were wrong themselves: to an unknown tool, or with arguments that do not fit it."""
    sampled: int
    """Tokens."""
    unread: str
    """What the policy wrote in place of a call, or the problem with it; shortened."""
    error: str
    """The result of the first call that failed; shortened."""

    @classmethod
    def of(cls, trace: Trace, reward: RewardConfig) -> Evidence:
        marks = (mark for turn in trace.turns for mark in turn.marks if mark.kind in _UNREAD)
        written = next((turn.content or turn.thinking for turn in trace.turns), "")
        calls = [each for turn in trace.turns for each in turn.tools if each.fault is not CallFault.UNREADABLE]
        failed = [each for each in calls if each.is_error]
        found = None if trace.is_withdrawn else trace.reward
        parts = found.parts if found is not None else {}
        weights = {name: reward.weight(name) for name in parts if reward.weight(name)}
        judged = reward.rubric.criteria if reward.rubric is not None else ()
        score = found.score if found is not None else 0.0
        most = [*weights.values(), reward.weight(Component.SCORE) if reward.server is not None else 0.0]
        ended = f"{trace.stop_reason} before the first token" if not trace.segments else str(trace.stop_reason)
        reason = f"{trace.failure.kind}: {trace.failure.message}" if trace.failure else ended
        return cls(
            group=siblings(trace),
            ended=trace.stop_reason,
            failure=reason if trace.is_withdrawn else "",
            score=score,
            best=max(sum(weight for weight in most if weight > 0), score),
            components={name: parts[name] for name in weights},
            judged=frozenset(judged),
            turns=len(trace.turns),
            calls=len(calls),
            errors=len(failed),
            mistakes=sum(each.fault is not None and each.fault.is_mistake for each in failed),
            sampled=trace.sampled_anew,
            unread=": ".join(filter(None, (next((mark.detail for mark in marks), ""), written)))[:_QUOTED],
            error=failed[0].text[:_QUOTED] if failed else "",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One defect of a batch: what was measured, and what to do."""

    defect: Defect
    about: str = ""
    """The component, where it is about one."""
    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.problem} ({self.remedy})"


def findings(batch: Sequence[Evidence], *, tool_format: str = "") -> list[Finding]:
    """The defects of a batch, what cannot heal first.

    Args:
        tool_format: that calls are read by; empty where the engine reads them.
    """
    played = [one for one in batch if not one.failure]
    if not played and batch:
        reasons = Counter(one.failure for one in batch).most_common(1)
        problem = f"all {len(batch)} trajectories were withdrawn, most often for {reasons[0][0]}"
        return [Finding(defect=Defect.WITHDRAWN, problem=problem, remedy="mend what withdraws them")]
    if len(played) < _LEAST:
        return []
    found = [*_void(played, tool_format)]
    # Each of these ties the groups: to say so, too, would tell nothing new.
    return found or [*_doubtful(played)]


def _void(played: Sequence[Evidence], tool_format: str) -> Iterator[Finding]:
    calls, errors = sum(one.calls for one in played), sum(one.errors for one in played)
    is_barren = not _differs(played) and all(_is_below_best(one) for one in played)
    if not calls and is_barren:
        problem = (
            f"none of the {sum(one.turns for one in played)} turns of {len(played)} trajectories was read as a call, "
            f"and no reward differs from its siblings'; for example {_example(played)}"
        )
        read_by = f"calls are read as {tool_format}: compare that" if tool_format else "compare how calls are read"
        remedy = f"{read_by} with what the model's chat template shows, or warm the policy up on traces of an expert"
        yield Finding(defect=Defect.NO_CALLS, problem=problem, remedy=remedy)
    mistakes = sum(one.mistakes for one in played)
    # A policy that makes mistakes may learn from rewards that differ; no reward mends a server.
    if calls >= _LEAST and errors == calls and (is_barren or mistakes < errors):
        error = next(one.error for one in played if one.errors)
        problem = f"each of {calls} calls failed; for example {error!r}"
        remedy = "try the same call with `mcp-rollout call`"
        if mistakes == errors:
            remedy = "the calls are wrong: warm the policy up on traces of an expert, or show fewer and simpler tools"
        yield Finding(defect=Defect.CALLS_FAIL, problem=problem, remedy=remedy)
    reasons = {one.ended for one in played}
    if is_barren and len(reasons) == 1 and (reason := reasons.pop()) is not None and reason.is_truncated:
        sampled, turns = fmean(one.sampled for one in played), fmean(one.turns for one in played)
        problem = f"{reason} ended each of {len(played)} trajectories, after {turns:.1f} turns and {sampled:.0f} tokens"
        yield Finding(defect=Defect.CUT, problem=problem, remedy=_room(reason, played))


def _room(reason: StopReason, played: Sequence[Evidence]) -> str:
    match reason:
        case StopReason.TOKEN_LIMIT:
            longest = max(one.sampled for one in played)
            rounded = -(-2 * longest // 256) * 256
            return (
                f"allow for more: data.max_response_length={rounded} is twice the longest; or make turns shorter by "
                "tokens_per_turn, thinking.tokens_per_turn or a template without thinking"
            )
        case StopReason.TIME_LIMIT:
            return "raise limits.wall_clock_s, or play fewer trajectories at a time"
        case _:
            return "raise the limit of this name under `limits` of the environment"


def _doubtful(played: Sequence[Evidence]) -> Iterator[Finding]:
    groups = _scores(played)
    if all(len(scores) > 1 for scores in groups.values()) and not _differs(played) and any(map(_is_below_best, played)):
        problem = f"in each of {len(groups)} groups all rewards are equal, and below the best: nothing is learned"
        remedy = "easier tasks, more samples of each, or a reward with parts that a first success can reach"
        yield Finding(defect=Defect.TIED, problem=problem, remedy=remedy)
    values = defaultdict[str, list[float]](list)
    for one in played:
        for name, value in one.components.items():
            values[name].append(value)
    judged = frozenset[str]().union(*(one.judged for one in played))
    for name, given in values.items():
        is_constant = len(given) >= _LEAST and max(given) - min(given) <= ROUNDING
        # At its best a component may have been learned; a judge that finds nothing to object to judges nothing.
        if is_constant and (name in judged or (given[0] < 1.0 - ROUNDING and len(values) > 1 and _differs(played))):
            what = "the judge's" if name in judged else "the component"
            problem = f"{what} {name} is {given[0]:.4g} in each of {len(given)} trajectories, and changes no advantage"
            remedy = "read what it judges in `mcp-rollout trace show`, or take its weight away"
            yield Finding(defect=Defect.CONSTANT, about=name, problem=problem, remedy=remedy)
    rewarded = [one for one in played if one.score >= one.best / 2 > 0]
    if len(rewarded) >= _LEAST and all(one.calls == one.errors for one in rewarded):
        problem = f"none of {len(rewarded)} rewarded trajectories has a call that succeeded"
        remedy = "if the task needs its tools, the reward can be had without them: see checks that hold before any turn"
        yield Finding(defect=Defect.UNEARNED, problem=problem, remedy=remedy)


def zero_advantages(batch: Iterable[Evidence]) -> float:
    """Share of the trajectories that were not withdrawn whose siblings have the same reward; 0 without any."""
    groups = _scores(one for one in batch if not one.failure)
    tied = sum(len(scores) for scores in groups.values() if max(scores) - min(scores) <= ROUNDING)
    return tied / max(sum(map(len, groups.values())), 1)


def _example(played: Sequence[Evidence]) -> str:
    return next((repr(one.unread) for one in played if one.unread), "an empty turn")


def _is_below_best(one: Evidence) -> bool:
    """Also where nothing has a weight."""
    return one.best <= 0 or one.score < one.best - ROUNDING


def _scores(played: Iterable[Evidence]) -> dict[Hashable, list[float]]:
    groups = defaultdict[Hashable, list[float]](list)
    for one in played:
        groups[one.group].append(one.score)
    return groups


def _differs(played: Sequence[Evidence]) -> bool:
    """Whether a group has different rewards, and so advantages other than 0."""
    return any(max(scores) - min(scores) > ROUNDING for scores in _scores(played).values())


class VoidRun(StopTraining):
    """Batch after batch has taught nothing, for a reason that does not heal."""


class VoidWatch:
    """Follows the batches of a training.

    Args:
        void_batches: Batches in a row with a defect that cannot heal, after which training stops; 0 for never.
        tool_format: see `findings`.
    """

    def __init__(self, void_batches: int, *, tool_format: str = "") -> None:
        self._void_batches, self._tool_format = void_batches, tool_format
        self._batches = 0
        self._lasted: Counter[tuple[Defect, str]] = Counter()
        self._reported: set[tuple[Defect, str]] = set()

    def add(self, batch: Sequence[Evidence]) -> list[Finding]:
        """Examine the next batch; returns what is to be reported now, each defect once.

        Raises:
            VoidRun: a defect that cannot heal has lasted for `void_batches`.
        """
        found = {(each.defect, each.about): each for each in findings(batch, tool_format=self._tool_format)}
        self._lasted = Counter({key: self._lasted[key] + 1 for key in found})
        self._batches += 1
        if stuck := [
            f"({each.defect}): {each.problem}\n  Remedy: {each.remedy}"
            for key, each in found.items()
            if not each.defect.heals and 0 < self._void_batches <= self._lasted[key]
        ]:
            began = f"training stops after {self._void_batches} batches that taught nothing "
            raise VoidRun("\n".join([began + stuck[0], *stuck[1:], "`void_batches` is the number of such batches."]))
        new = [key for key in found if key not in self._reported and self._is_certain(key)]
        self._reported.update(new)
        return [found[key] for key in new]

    def _is_certain(self, key: tuple[Defect, str]) -> bool:
        lasted, patience = self._lasted[key], key[0].patience
        return lasted >= (patience if patience == 1 or lasted == self._batches else 2 * patience)
