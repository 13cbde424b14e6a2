"""Outcomes of the trajectories of a prompt that is not issued again after its worker process died."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import ray
import structlog
from omegaconf import DictConfig
from tensordict import NonTensorData, NonTensorStack, TensorDict

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.rollout.environment.task import UNREADABLE, Task
from mcp_rollout.rollout.errors import WorkerDied
from mcp_rollout.rollout.trace.record import Trace
from mcp_rollout.rollout.trace.store import TraceStore
from mcp_rollout.rollout.training.statistics import TrajectoryStatistics
from mcp_rollout.rollout.verl.agent_workers import MOST_ATTEMPTS
from mcp_rollout.rollout.verl.batch_statistics import statistics_collector
from mcp_rollout.rollout.verl.origin import Batch, origin_of
from mcp_rollout.rollout.verl.settings import Settings

log = structlog.get_logger(__name__)


class LostPrompts:
    """Writes and reports a withdrawn trace for each trajectory of a lost prompt: `max_failed_share` counts them."""

    def __init__(self, config: DictConfig) -> None:
        self._config = config
        self._store: TraceStore | None = None

    def give_up(self, prompt: TensorDict, attempt: int) -> None:
        """Record and report the trajectories of a batch of one prompt."""
        row = _row(prompt)
        try:
            task = Task.from_row(row)
        except ConfigError:  # a row of another agent, which reports nothing
            log.error("prompt given up: its worker died", uid=row["uid"])
            return
        if self._store is None:
            self._store = TraceStore(Settings.of(self._config).trace_dir)
        error = WorkerDied(
            f"the agent worker died while it played this prompt, {attempt % MOST_ATTEMPTS + 1} times in all"
        )
        for trace in self._traces(task, row, attempt):
            trace.fail(error.code, str(error))
            self._store.append(trace)
            ray.get(statistics_collector().add.remote(TrajectoryStatistics.of(trace)))

    def _traces(self, task: Task, row: dict[str, Any], attempt: int) -> Iterator[Trace]:
        validate = bool(row.get("validate", False))
        rollout = self._config.actor_rollout_ref.rollout
        for sample in range(row.get("__rollout_n__", rollout.val_kwargs.n if validate else rollout.n)):
            origin = origin_of({**row, "session_id": sample}, Batch(validate=validate, attempt=attempt))
            trace = Trace.begin(uuid4().hex, UNREADABLE, origin)
            trace.take(task)
            yield trace


def _row(prompt: TensorDict) -> dict[str, Any]:
    """The values of a batch of one prompt, as verl's worker takes them."""
    row: dict[str, Any] = {}
    for name, value in prompt.items():
        match value:
            case NonTensorStack():
                row[str(name)] = value[0].data
            case NonTensorData():
                row[str(name)] = value.data
            case _:
                row[str(name)] = value[0]
    return row
