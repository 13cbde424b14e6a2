"""The Ray actor that collects the statistics of a batch's trajectories from all workers."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import Any

import ray

from mcp_rollout.rollout.training.statistics import BatchStatistics, TrajectoryStatistics

ACTOR_NAME = "mcp_rollout_batch_statistics"
MOST_KEPT = 2**16
"""Trajectories that are kept, the newest: 4 KB each and 0.6 KB for each call, measured, so 0.7 GB with ten calls. Our
samplers take those of each batch out, in far smaller numbers; another sampler takes none."""


class StatisticsCollector:
    """A Ray actor, one per training job, to which all workers report finished trajectories."""

    def __init__(self) -> None:
        self._finished: deque[TrajectoryStatistics] = deque(maxlen=MOST_KEPT)
        self._workers_replaced = 0

    def add(self, trajectory: TrajectoryStatistics) -> None:
        self._finished.append(trajectory)

    def forget(self, groups: Collection[str]) -> None:
        """Drop what the trajectories of these groups reported: the groups are played again as a whole."""
        self._finished = deque((one for one in self._finished if one.group not in groups), maxlen=MOST_KEPT)

    def worker_replaced(self) -> None:
        self._workers_replaced += 1

    def of(self, groups: Collection[str] | None = None) -> BatchStatistics:
        """The trajectories of these groups that have finished; of all groups by default."""
        return BatchStatistics([one for one in self._finished if groups is None or one.group in groups])

    def take(self, groups: Collection[str], validate: bool = False) -> BatchStatistics:
        """Remove and return the trajectories of these groups.

        A batch of training has the number of workers that were replaced since the one before.
        """
        taken = self.of(groups).trajectories
        self.forget(groups)
        replaced = 0
        if not validate:
            replaced, self._workers_replaced = self._workers_replaced, 0
        return BatchStatistics(taken, workers_replaced=replaced)


def statistics_collector() -> Any:
    """Handle of the job's `StatisticsCollector`, started if there is none. Ray ends it with its last handle."""
    return ray.remote(StatisticsCollector).options(name=ACTOR_NAME, get_if_exists=True, num_cpus=0).remote()
