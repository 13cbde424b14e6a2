"""The siblings of a trajectory, aligned where they first differ, and the same task in other steps."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from statistics import fmean
from typing import Any

from mcp_rollout.gateway.differences import shared_beginning
from mcp_rollout.rollout.trace.entries import Entry
from mcp_rollout.rollout.trace.reader import Traces
from mcp_rollout.rollout.trace.record import Trace
from mcp_rollout.rollout.trace.trained_segment import TrainedSegment
from mcp_rollout.rollout.viewer.directory import Runs
from mcp_rollout.rollout.viewer.filters import quoted

MOST_SIBLINGS = 64
MOST_STEPS = 400
_BRIEF = ("id", "run", "began_at", "step", "validate", "row", "sample", "attempt", "reward", "stop_reason", "tokens")
_TREE = ("prompt_tokens", "response_tokens", "parent", "branched_at", "withdrawn", "uid", "turns")


def siblings_of(runs: Runs, entry: Entry) -> list[Entry]:
    """The entries of the trajectory's group, itself included, by sample; at most `MOST_SIBLINGS`."""
    where = [
        runs.condition(runs.name_of(entry["file"])),
        f"environment = {quoted(entry['environment'])}",
        "step IS NULL" if entry["step"] is None else f"step = {entry['step']}",
        f"validate = {int(entry['validate'])}",
    ]
    if entry["uid"]:
        where.append(f"uid = {quoted(entry['uid'])}")
    else:
        # A seed beyond SQLite's integers is a text in the index.
        seed = f"CAST(seed AS TEXT) = {quoted(str(entry['seed']))}"
        where += [f"row = {entry['row']}", f"task = {quoted(entry['task'])}", seed]
    columns = [*_BRIEF, *_TREE]
    found = runs.traces.entries(
        where=" AND ".join(where), sort=["sample", "attempt"], columns=columns, limit=MOST_SIBLINGS
    )
    return list(found)


def same_task(traces: Traces, entry: Entry) -> list[Entry]:
    """Trajectories of the same task in all runs and steps, by step; at most `MOST_STEPS`."""
    where = f"environment = {quoted(entry['environment'])} AND task = {quoted(entry['task'])}"
    return list(traces.entries(where=where, sort=["step", "sample"], columns=_BRIEF, limit=MOST_STEPS))


def compared(traces: Sequence[Trace]) -> dict[str, Any]:
    """The turns of trajectories as texts, and for each two of them how many ids they share from the beginning.

    Returns:
        `members`, a list; `shared`, a matrix in its order. Compared are the first segments.
    """
    ids = [_ids(trace) for trace in traces]
    return {
        "members": [
            {
                "id": trace.id,
                "length": len(own),
                "turns": [_lines(trace, number) for number in range(len(trace.turns))],
            }
            for trace, own in zip(traces, ids, strict=True)
        ],
        "shared": _shared(ids),
    }


def _shared(sequences: Sequence[list[int]]) -> list[list[int]]:
    """Lengths of common beginnings. In sorted order, two share the least of what neighbours between them share."""
    order = sorted(range(len(sequences)), key=lambda index: sequences[index])
    common = [shared_beginning(sequences[one], sequences[other]) for one, other in pairwise(order)]
    matrix = [[len(sequence)] * len(sequences) for sequence in sequences]
    for place, index in enumerate(order):
        for other, least in zip(order[place + 1 :], accumulate(common[place:], min), strict=True):
            matrix[index][other] = matrix[other][index] = least
    return matrix


def advantage(trained: Iterable[TrainedSegment]) -> float | None:
    """The mean advantage of the trained tokens; None if none was trained on."""
    values = [
        value for each in trained for value, is_in_loss in zip(each.advantages, each.mask, strict=False) if is_in_loss
    ]
    return fmean(values) if values else None


def _ids(trace: Trace) -> list[int]:
    first = trace.earlier[0] if trace.earlier else trace
    return first.prompt_ids + first.response_ids


def _lines(trace: Trace, number: int) -> list[list[str]]:
    """The turn as pairs of kind and text."""
    turn = trace.turns[number]
    found = [["thinking", turn.thinking]] if turn.thinking else []
    found += [["content", turn.content]] if turn.content else []
    for event in turn.tools:
        found.append(["call", f"{event.name} {json.dumps(event.arguments, ensure_ascii=False)}"])
        found.append(["error" if event.is_error else "result", event.text])
    found += [["user", turn.user.message]] if turn.user is not None else []
    found += [["agent", turn.agent_message]] if turn.agent_message else []
    return found
