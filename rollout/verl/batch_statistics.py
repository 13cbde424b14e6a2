"""The Ray actor that collects the statistics of a batch's trajectories from all workers."""

from __future__ import annotations

from typing import Any

import ray

from rollout.training.statistics import BatchStatistics, TrajectoryStatistics

ACTOR_NAME = "mcp_rollout_batch_statistics"


class StatisticsCollector:
    """A Ray actor, one per training job, to which all workers report finished trajectories."""

    def __init__(self) -> None:
        self._finished: list[TrajectoryStatistics] = []

    def add(self, trajectory: TrajectoryStatistics) -> None:
        self._finished.append(trajectory)

    def drain(self, validate: bool) -> BatchStatistics:
        """Remove and return the training (or validation) trajectories that finished since the last call."""
        drained = [one for one in self._finished if one.validate is validate]
        self._finished = [one for one in self._finished if one.validate is not validate]
        return BatchStatistics(drained)


def statistics_collector() -> Any:
    """Handle of the job's `StatisticsCollector`, started if there is none. Ray ends it with its last handle."""
    return ray.remote(StatisticsCollector).options(name=ACTOR_NAME, get_if_exists=True, num_cpus=0).remote()
