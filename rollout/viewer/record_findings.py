"""Findings that compare the records of siblings, of a sample of groups."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from rollout.trace.drift import CallSeen, calls_seen, drifts
from rollout.trace.entries import Entry
from rollout.trace.trained import digest
from rollout.viewer.finding import Found, Scope, check

MOST_RECORDS = 256
COPIED_SHARE = 0.25
_SAMPLE = f"of the last groups, up to {MOST_RECORDS} trajectories"


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """What comparing siblings needs of a trajectory."""

    entry: Entry
    ids: bytes
    """Digest of the first segment."""
    calls: tuple[CallSeen, ...]


def sampled_groups(scope: Scope) -> list[list[Compared]]:
    """Groups of siblings, the last ones first."""
    columns = ("id", "run", "began_at", "uid", "task", "seed", "row", "sample", "step", "reward")
    entries = scope.pages.traces.entries(
        where=f"{scope.played} AND NOT validate", sort=["-step", "row", "sample"], columns=columns, limit=MOST_RECORDS
    )
    found: defaultdict[tuple[object, ...], list[Compared]] = defaultdict(list)
    for entry in entries:
        trace = scope.pages.traces.read(entry)
        first = trace.earlier[0] if trace.earlier else trace
        key = (entry["step"], entry["uid"] or (entry["task"], entry["seed"], entry["row"]))
        ids = digest(first.prompt_ids, first.response_ids)
        found[key].append(Compared(entry=entry, ids=ids, calls=calls_seen(trace)))
    return [group for group in found.values() if len(group) > 1]


@check(
    "Siblings that are copies",
    threshold=f"{_SAMPLE}, at least {COPIED_SHARE:.0%} have the ids of a sibling",
)
def copies(scope: Scope) -> Iterator[Found]:
    groups = scope.sampled(sampled_groups)
    copied: list[Entry] = []
    for group in groups:
        counts = Counter(each.ids for each in group)
        copied += [each.entry for each in group if counts[each.ids] > 1]
    read = sum(map(len, groups))
    if not read or len(copied) < COPIED_SHARE * read:
        return
    different = {(entry["step"], entry["uid"], entry["row"]): entry for entry in reversed(copied)}
    yield Found(
        detail=f"{len(copied):,} of {read:,} trajectories have the same ids as a sibling: they add no spread.",
        groups=[scope.group("one of each group", list(different.values())[:3], view={"tab": "siblings"})],
        weight="note",
    )


@check(
    "Drift",
    threshold=f"{_SAMPLE}, the same call after the same calls had different results",
)
def drift(scope: Scope) -> Iterator[Found]:
    groups = scope.sampled(sampled_groups)
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


CHECKS = (copies, drift)
"""In the order of a report."""
