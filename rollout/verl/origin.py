"""The origin of a trajectory, from its row and the batch that verl plays it in."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import Any

from mcp_rollout.rollout.environment.task import Origin, sampling_seed
from mcp_rollout.rollout.loop.group import Group
from mcp_rollout.rollout.verl.reward_loop import ComputeScore


@dataclass(frozen=True, slots=True)
class Batch:
    """The batch that a trajectory belongs to; the step is -1 if unknown."""

    step: int = -1
    validate: bool = False
    attempt: int = 0
    """How often the row's prompt was issued before: once for each worker process that died with it."""
    copy: int = 0
    """How many prompts of the same row were issued in this step before."""
    group: Group | None = None
    """The siblings of the row; None where this worker does not play them together."""
    compute_score: ComputeScore | None = None
    """verl's computation of a score, in its reward loop; None if the worker is not ours."""

    def seed(self, base: int) -> int:
        """The run's seed, or one of its own where the row is played again in this step: it draws other numbers."""
        if not (self.copy or self.attempt):
            return base
        return sampling_seed(Origin(row=self.copy, sample=self.attempt), 0, base=base)


def origin_of(row: dict[str, Any], batch: Batch) -> Origin:
    """The trajectory's origin. An index that is not an integer counts as 0 here; `Task.from_row` refuses it."""
    index = row.get("index")
    return Origin(
        row=int(index) if isinstance(index, Integral) else 0,
        sample=int(row.get("session_id", 0)),
        step=batch.step if batch.step >= 0 else int(row.get("global_steps", -1)),
        validate=batch.validate,
        attempt=batch.attempt,
        split="validation" if batch.validate else "train",
        uid=str(row.get("uid", "")),
        engine="verl",
    )
