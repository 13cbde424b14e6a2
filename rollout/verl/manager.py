"""`agent_loop_manager_class` for verl's v1 trainer: stock scheduling, plus what verl does not tell an agent loop."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import ray
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ, AgentLoopWorkerTQ

from rollout.verl.ledger import start_ledger


@dataclass(frozen=True, slots=True)
class Batch:
    """What the trainer is doing while a trajectory runs."""

    step: int = -1
    validate: bool = False


BATCH: ContextVar[Batch] = ContextVar("mcp_rollout_batch", default=Batch())  # noqa: B039 - frozen

# verl exports the worker as a Ray actor class; to subclass it, the plain class is taken back out.
_Worker: Any = getattr(AgentLoopWorkerTQ, "__ray_metadata__").modified_class  # noqa: B009 - no static type has it


class MCPAgentLoopWorker(_Worker):
    """verl's worker; hands the step and the validate flag to the agent loop, which `run()` is not given."""

    async def _run_agent_loop(self, sampling_params: dict[str, Any], trajectory: dict[str, Any], **row: Any) -> None:
        BATCH.set(Batch(step=int(trajectory["step"]), validate=bool(trajectory["validate"])))
        await super()._run_agent_loop(sampling_params, trajectory, **row)


class MCPAgentLoopManager(AgentLoopManagerTQ):
    """verl's manager with our worker class, and the job's ledger beside it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Set after the base class, which assigns its own without asking.
        self.agent_loop_workers_class = ray.remote(MCPAgentLoopWorker)
        self.ledger = start_ledger()
