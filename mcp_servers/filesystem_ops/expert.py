"""The scripted expert: looks around, reads what it has to, makes directories, then changes."""

from __future__ import annotations

from collections.abc import Sequence

from mcp_servers.filesystem_ops.tasks import Assignment
from mcp_servers.kit.answers import Call, Expert, ExpertTurn

MOST_CALLS = 8
"""In one turn."""


def expert(assignment: Assignment) -> Expert:
    turns = [_turn("I look around first.", [Call(name="directory_tree", arguments={"path": "."})])]
    for job in assignment.jobs:
        read = Call(name="read_multiple_files", arguments={"paths": list(job.reads)})
        turns.append(_turn("I have to know what is in these files.", [read]))
        for directory in job.makes:
            made = Call(name="create_directory", arguments={"path": directory})
            turns.append(_turn(f"{directory} is not there yet.", [made]))
        starts = range(0, len(job.changes), MOST_CALLS)
        turns += [_turn("Now I can do it.", job.changes[start : start + MOST_CALLS]) for start in starts]
    return Expert(turns=[*turns, ExpertTurn(thinking="That was all.", content="It is done.")])


def _turn(thinking: str, calls: Sequence[Call]) -> ExpertTurn:
    return ExpertTurn(thinking=thinking, calls=list(calls))
