"""Findings that need the records, of a sample of groups."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from mcp_rollout.rollout.trace.drift import CallSeen, calls_seen, drifts
from mcp_rollout.rollout.trace.entries import Entry
from mcp_rollout.rollout.trace.trained_segment import digest
from mcp_rollout.rollout.viewer.finding import Found, Scope, check

MOST_RECORDS = 256
_SAMPLE = f"of the last groups, up to {MOST_RECORDS} trajectories"


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """What comparing siblings needs of a trajectory."""

    entry: Entry
    prompt: bytes
    """Digest of the first segment's prompt."""
    calls: tuple[CallSeen, ...]


def sampled_groups(scope: Scope) -> list[list[Compared]]:
    """Groups of trajectories of one row, the last ones first."""
    columns = ("id", "run", "began_at", "uid", "task", "seed", "row", "sample", "step", "reward")
    entries = scope.directory.traces.entries(
        where=f"{scope.played} AND NOT validate", sort=["-step", "row", "sample"], columns=columns, limit=MOST_RECORDS
    )
    found: defaultdict[tuple[object, ...], list[Compared]] = defaultdict(list)
    for entry in entries:
        trace = scope.directory.traces.read(entry)
        first = trace.earlier[0] if trace.earlier else trace
        key = (entry["step"], entry["uid"] or (entry["task"], entry["seed"], entry["row"]))
        prompt = digest(first.prompt_ids, [])
        found[key].append(Compared(entry=entry, prompt=prompt, calls=calls_seen(trace)))
    return list(found.values())


def _siblings(scope: Scope) -> list[list[Compared]]:
    return [group for group in scope.sampled(sampled_groups) if len(group) > 1]


@check(
    "Drift",
    threshold=f"{_SAMPLE}, the same call after the same calls had different results",
)
def drift(scope: Scope) -> Iterator[Found]:
    groups = _siblings(scope)
    drifted = [(group, found) for group in groups if (found := drifts((0, each.calls) for each in group))]
    if not drifted:
        return
    calls = sum(len(found) for _, found in drifted)
    yield Found(
        detail=f"{calls:,} calls in {len(drifted):,} of {len(groups):,} groups had different results for "
        f"siblings: their rewards compare different worlds. For one, {drifted[0][1][0]}",
        groups=[
            scope.group("one of each group", [group[0].entry for group, _ in drifted[:3]], view={"tab": "siblings"})
        ],
    )


@check(
    "Siblings with different prompts",
    threshold=f"{_SAMPLE}, the first prompts of siblings differ",
)
def different_prompts(scope: Scope) -> Iterator[Found]:
    groups = _siblings(scope)
    differing = [group for group in groups if len({each.prompt for each in group}) > 1]
    if not differing:
        return
    yield Found(
        detail=f"{len(differing):,} of {len(groups):,} groups: their rewards compare different tasks. A program that "
        "plays them may put a date, a path or what it found on the machine into its prompt.",
        groups=[scope.group("one of each group", [each[0].entry for each in differing[:3]], view={"tab": "siblings"})],
    )


CHECKS = (different_prompts, drift)
"""In the order of a report."""
