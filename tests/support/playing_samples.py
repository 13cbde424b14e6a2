"""Trajectories of an environment's own tasks, for comparing where its servers run."""

from __future__ import annotations

from pathlib import Path

from mcp_rollout.gateway.gateway import Gateway
from mcp_rollout.rollout.engines.engine import Engine
from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.environment.rows import environment_tasks
from mcp_rollout.rollout.evaluation.play import Lengths, jobs_of, play_all
from mcp_rollout.rollout.trace.record import Trace
from mcp_rollout.rollout.trace.store import TraceStore


async def played(
    gateway: Gateway, made: Environment, engine: Engine, tasks: int, out: Path, *, split: str = "train"
) -> list[Trace]:
    """Two samples of each task."""
    rows = await environment_tasks(made, gateway, split, tasks)
    traces: list[Trace] = []
    await play_all(
        jobs_of(made, rows, 2, engine.name),
        gateways={made.name: gateway},
        engine=engine,
        lengths=Lengths(response_tokens=60_000),
        store=TraceStore(out),
        concurrency=4,
        finished=traces.append,
    )
    return traces
