"""A training of which too many trajectories are withdrawn ends with the reasons, instead of never."""

from __future__ import annotations

from pathlib import Path

import pytest
from worlds import task

from mcp_rollout.gateway.errors import LockMismatch
from mcp_rollout.rollout.areal.stopping import Rows, TrainingStopped, Watch, clear_stop
from mcp_rollout.rollout.environment.task import Origin
from mcp_rollout.rollout.trace.record import StopReason, Trace
from mcp_rollout.rollout.training.statistics import TrajectoryStatistics


def trajectory(*, failed: bool, validate: bool = False, kind: str = "server_died") -> TrajectoryStatistics:
    trace = Trace.begin("t", task(), Origin(validate=validate))
    trace.stop_reason, trace.response_ids = StopReason.ANSWERED, [1]
    if failed:
        trace.fail(kind, "the world ended")
    return TrajectoryStatistics.of(trace)


def watched(directory: Path, failures: list[bool], **options: bool) -> Rows:
    watch = Watch(directory, window=4, max_failed_share=0.5)
    for failed in failures:
        watch.add(trajectory(failed=failed, **options))
    return Rows([{"row": 0}], directory)


def test_rows_are_read_while_enough_trajectories_are_whole(tmp_path: Path) -> None:
    rows = watched(tmp_path, [True, True, False, False, True, True, False, False, True])
    assert rows[0] == {"row": 0} and len(rows) == 1


def test_more_failures_than_allowed_stop_the_training_with_their_reasons(tmp_path: Path) -> None:
    rows = watched(tmp_path, [False, False, True, True, True])
    with pytest.raises(
        TrainingStopped, match=r"3 of 4 .* max_failed_share=0.5 allows:\n  3 x server_died: the world ended"
    ):
        rows[0]
    assert rows[0] if clear_stop(tmp_path) else True
    assert rows[0] == {"row": 0}


def test_failures_are_not_counted_before_there_are_enough_of_them(tmp_path: Path) -> None:
    assert watched(tmp_path, [True, True, True])[0] == {"row": 0}


def test_validation_is_not_counted(tmp_path: Path) -> None:
    assert watched(tmp_path, [True] * 9, validate=True)[0] == {"row": 0}


def test_changed_tools_stop_the_training_at_once(tmp_path: Path) -> None:
    Watch(tmp_path, window=100, max_failed_share=1.0).add(trajectory(failed=True, kind=LockMismatch.code))
    with pytest.raises(TrainingStopped, match="tools are no longer what it began with"):
        Rows([{}], tmp_path)[0]
