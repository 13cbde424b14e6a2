"""Kinds of errors in held-out trajectories, and how training treated the same kinds."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from mcp_rollout.rollout.trace.entries import Entry
from mcp_rollout.rollout.trace.events import ORDINARY
from mcp_rollout.rollout.trace.record import Trace
from mcp_rollout.rollout.trace.trained_segment import TrainedSegment
from mcp_rollout.rollout.viewer.filters import TRUNCATED, UNREADABLE, condition
from mcp_rollout.rollout.viewer.finding import EXAMPLES, Example, Found, MovedToken, Scope, check, title_of

LOW_SHARE = 0.5
"""A reward of at most this share of the environment's best one is low."""
KIND_SHARE = 0.1
"""A kind is reported if it has this share of the trajectories with a low reward."""
MOST_KINDS = 3
_MOST_READ = 20_000
_CANDIDATES = 60
_SHOWN_TOKENS = 4
_SHOWN = 180


@dataclass(frozen=True, slots=True)
class ErrorKind:
    """What went wrong in a trajectory, as far as the index has it."""

    text: str
    filter: tuple[str, str]
    """The filter of the list that finds the same kind."""


def kind_of(entry: Entry) -> ErrorKind:
    """The kind of error of a trajectory with a low reward: the first that applies."""
    if entry["stop_reason"] in TRUNCATED:
        return ErrorKind(f"ended by {entry['stop_reason']}", ("stop", entry["stop_reason"]))
    if entry["errors"]:
        tool = max(entry["errors"], key=lambda name: (entry["errors"][name], name)) or UNREADABLE
        return ErrorKind(f"{tool} returned an error", ("failed_tool", tool))
    if marks := entry["marks"].keys() - ORDINARY:
        return ErrorKind(f"marked {min(marks)}", ("mark", min(marks)))
    calls = json.dumps(entry["calls"], ensure_ascii=False, sort_keys=True)
    if not entry["calls"]:
        return ErrorKind("no tool was called", ("calls", calls))
    return ErrorKind(f"calls without an error: {', '.join(entry['calls'])}", ("calls", calls))


@check(
    "Low reward",
    threshold=f"a kind of error has at least {KIND_SHARE:.0%} of the trajectories that earned at most "
    f"{LOW_SHARE:g} of the best reward, the one first that is least frequent among the others; held-out "
    "ones of the last step that has some, or those of an evaluation",
)
def low_rewards(scope: Scope) -> Iterator[Found]:
    """A finding for each frequent kind of error."""
    (best,) = scope.one("max(reward)", scope.played)
    if best is None:
        return
    bound = LOW_SHARE * best if best > 0 else best
    split, step = _judged(scope)
    filters = {"split": split} | ({"step_from": str(step), "step_to": str(step)} if step is not None else {})
    low = {**filters, "reward_to": f"{bound:g}"}
    kinds: Counter[ErrorKind] = Counter()
    for entry in scope.directory.traces.entries(where=scope.condition(low), columns=_KIND_COLUMNS, limit=_MOST_READ):
        kinds[kind_of(entry)] += 1
    counts = [f"{scope.directory.traces.count(scope.condition(each)):,}" for each in (low, filters)]
    frequent = [kind for kind, count in kinds.items() if count >= KIND_SHARE * kinds.total()]
    shares = {kind: _shares(scope, filters, kind, bound) for kind in frequent}
    for kind in sorted(frequent, key=lambda kind: shares[kind][1] - shares[kind][0])[:MOST_KINDS]:
        yield _finding(scope, kind, {**low, kind.filter[0]: kind.filter[1]}, " of ".join(counts), step, shares[kind])


_KIND_COLUMNS = ("id", "stop_reason", "errors", "marks", "calls")


def _judged(scope: Scope) -> tuple[str, int | None]:
    """The split and step to look at: held-out ones of their last step, an evaluation, else training's last step."""
    (held_out,) = scope.one("max(step)", f"{scope.played} AND validate")
    if held_out is not None:
        return "held-out", held_out
    return ("train", scope.steps[-1]) if scope.steps else ("evaluation", None)


def _shares(scope: Scope, filters: dict[str, str], kind: ErrorKind, bound: float) -> tuple[float, float]:
    """The share of trajectories with this kind of error among those with a low reward, and among the others."""
    matches = condition({kind.filter[0]: kind.filter[1]})
    low, low_matching, others, others_matching = scope.one(
        f"sum(reward <= {bound!r}), sum(reward <= {bound!r} AND {matches}), "
        f"sum(reward > {bound!r}), sum(reward > {bound!r} AND {matches})",
        scope.condition(filters),
    )
    return (low_matching or 0) / (low or 1), (others_matching or 0) / (others or 1)


def _finding(
    scope: Scope, kind: ErrorKind, filters: dict[str, str], low: str, step: int | None, shares: tuple[float, float]
) -> Found:
    split, limit = filters["split"], filters["reward_to"]
    examples = [_explained(scope, entry) for entry in scope.examples(scope.condition(filters), sort=["reward"])]
    groups = [scope.listed(f"{_adjective(split)} trajectories, worst first", examples, filters)]
    if split == "held-out" and scope.steps:
        same = {"split": "train", kind.filter[0]: kind.filter[1], "reward_to": limit}
        groups.append(scope.listed("the same kind in late training, pushed down most", _in_training(scope, same), same))
    at = "" if step is None else f" of step {step}"
    return Found(
        about=kind.text,
        detail=f"{low} {_adjective(split)} trajectories{at} earned at most {limit}; "
        # The filter's own number: a trajectory that a limit ended may have had such an error, too.
        f"in {groups[0].total:,} of them ({shares[0]:.0%}; of the others {shares[1]:.0%}): {kind.text}.",
        groups=groups,
        weight="problem" if shares[0] - shares[1] >= KIND_SHARE else "note",
    )


def _adjective(split: str) -> str:
    return {"held-out": "held-out", "train": "training", "evaluation": "evaluated"}[split]


def _explained(scope: Scope, entry: Entry) -> Example:
    """The trajectory with the first thing that went wrong in it."""
    trace = scope.directory.traces.read(entry)
    note, turn = what_went_wrong(trace)
    return Example(id=entry["id"], title=title_of(entry), reward=entry["reward"], note=note, view={"turn": turn})


def what_went_wrong(trace: Trace) -> tuple[str, int]:
    """The first error of a trajectory, else how it ended and what it earned nothing for; and the turn."""
    for number, turn in enumerate(trace.turns):
        for event in turn.tools:
            if event.is_error:
                return _short(f"{event.name} {json.dumps(event.arguments, ensure_ascii=False)}: {event.text}"), number
        for mark in (each for each in turn.marks if each.kind not in ORDINARY):
            return _short(f"{mark.kind}: {mark.detail}"), number
    last = max(0, len(trace.turns) - 1)
    lost = [name for name, value in (trace.reward.parts if trace.reward else {}).items() if value <= 0]
    calls = [event.name for turn in trace.turns for event in turn.tools]
    said = trace.turns[-1].content if trace.turns else ""
    parts = f"nothing for {', '.join(lost)} after {', '.join(calls) or 'no call'}" if lost else f"{trace.stop_reason}"
    return _short(f"{parts}; it said: {said}" if said else parts), last


def _in_training(scope: Scope, filters: dict[str, str]) -> list[Example]:
    """Training trajectories of a kind that an update pushed down most, with the tokens that it moved.

    Chosen among the `_CANDIDATES` latest of those with the least reward, one of each group.
    """
    where = f"{scope.condition(filters)} AND NOT withdrawn"
    found: list[tuple[float, Example]] = []
    groups: set[tuple[object, ...]] = set()
    for entry in scope.entries(where, sort=["reward", "-step"], limit=_CANDIDATES):
        group = (entry["step"], entry["uid"], entry["row"])
        if group in groups:
            continue  # siblings often fail alike
        groups.add(group)
        trained = scope.directory.trained(entry, [entry["id"]]).get(entry["id"], [])
        trace = scope.directory.traces.read(entry)
        tokens = pushed_down(trace, trained, scope)
        pushed = sum(token.push for token in tokens)
        note = what_went_wrong(trace)[0]
        view: dict[str, object] = {"tab": "tokens", "color": "push"} if tokens else {}
        if tokens:
            view["token"] = tokens[0].index
        found.append(
            (
                pushed,
                Example(
                    id=entry["id"], title=title_of(entry), reward=entry["reward"], note=note, view=view, tokens=tokens
                ),
            )
        )
    found.sort(key=lambda each: each[0])
    return [example for _, example in found[:EXAMPLES]]


def pushed_down(trace: Trace, trained: list[TrainedSegment], scope: Scope) -> tuple[MovedToken, ...]:
    """The tokens of the trajectory's last segment that its update made less probable, the strongest first."""
    latest = next((each for each in reversed(trained) if each.segment == len(trace.earlier)), None)
    if latest is None or not latest.advantages:
        return ()
    texts = scope.directory.texts(trace).texts([*trace.prompt_ids, *trace.response_ids])
    moved: list[MovedToken] = []
    for place, is_in_loss in enumerate(latest.mask[: len(trace.response_ids)]):
        advantage, probability = latest.advantages[place], math.exp(min(0.0, latest.trainer_logprobs[place]))
        if is_in_loss and advantage < 0:
            index = len(trace.prompt_ids) + place
            moved.append(
                MovedToken(
                    index=index,
                    id=trace.response_ids[place],
                    text=texts[index],
                    probability=probability,
                    advantage=advantage,
                    push=advantage * (1 - probability),
                )
            )
    moved.sort(key=lambda token: token.push)
    return tuple(token for token in moved[:_SHOWN_TOKENS] if token.push < moved[0].push / 50)


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _SHOWN else flat[: _SHOWN - 1] + "…"


CHECKS = (low_rewards,)
"""In the order of a report."""
