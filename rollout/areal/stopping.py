"""Stop a training when too many of its trajectories are withdrawn.

AReaL replaces every trajectory that a workflow rejects, forever. A rollout process that sees too many failures writes
the reasons into a file beside the traces; the trainer's process reads it with the next row, in both of AReaL's modes.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog

from mcp_rollout.gateway.private_files import make_private, write_private
from mcp_rollout.rollout.training.statistics import (
    BatchStatistics,
    ToolsChanged,
    TooManyFailures,
    TrajectoryStatistics,
    check_failures,
)

log = structlog.get_logger(__name__)

STOP_FILE = "training-stopped.txt"


class TrainingStopped(RuntimeError):
    """A rollout process stopped the training; the message has its reasons."""


def clear_stop(trace_dir: Path) -> None:
    """Remove the reasons of an earlier run."""
    with contextlib.suppress(FileNotFoundError):
        (trace_dir / STOP_FILE).unlink()


class Watch:
    """Watches the training trajectories that one process has played last, as many as its share of a batch.

    Args:
        window: their number.
        max_failed_share: largest share of them that may be withdrawn.
    """

    def __init__(self, trace_dir: Path, *, window: int, max_failed_share: float) -> None:
        self._trace_dir, self._max_failed_share = trace_dir, max_failed_share
        self._last: deque[TrajectoryStatistics] = deque(maxlen=window)

    def add(self, trajectory: TrajectoryStatistics) -> None:
        """Take a finished trajectory into account; stop the training if that is one failure too many."""
        if trajectory.validate:
            return
        self._last.append(trajectory)
        # Until the window is full a share says little, and only changed tools stop the training.
        batch = BatchStatistics(self._last if len(self._last) == self._last.maxlen else [trajectory])
        allowed = self._max_failed_share if len(self._last) == self._last.maxlen else 1.0
        try:
            check_failures(batch, allowed)
        except (TooManyFailures, ToolsChanged) as error:
            log.error("training stops", reason=str(error))
            make_private(self._trace_dir)
            # The trainer may look at any moment, and reads all of the reasons or none.
            write_private(self._trace_dir / STOP_FILE, str(error))


class Rows(Sequence[Mapping[str, Any]]):
    """A dataset's rows. Reading one raises TrainingStopped once a rollout process has stopped the training."""

    def __init__(self, rows: Sequence[Mapping[str, Any]], trace_dir: Path) -> None:
        self._rows, self._stop = rows, trace_dir / STOP_FILE

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        with contextlib.suppress(FileNotFoundError):
            raise TrainingStopped(self._stop.read_text())
        return self._rows[index]
