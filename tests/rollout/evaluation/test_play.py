"""Trajectories of a run are played and recorded independently of each other."""

from __future__ import annotations

from pathlib import Path

import pytest
from mcp.server.mcpserver import MCPServer
from worlds import environment

from mcp_rollout.gateway.gateway import Gateway
from mcp_rollout.gateway.leases.session import Session
from mcp_rollout.rollout.engines.scripted import WithoutModel
from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.environment.task import Origin, Task
from mcp_rollout.rollout.evaluation.play import Job, Lengths, play_all
from mcp_rollout.rollout.trace.record import Trace
from mcp_rollout.rollout.trace.store import TraceStore, read_traces
from mcp_rollout.rollout.types import Policy

pytestmark = pytest.mark.anyio


class Defective(WithoutModel):
    """The engine without a model, with a defect that the second sample meets."""

    async def policy(self, session: Session, environment: Environment, task: Task, origin: Origin) -> Policy:
        if origin.sample == 1:
            raise ZeroDivisionError("oops")
        return await super().policy(session, environment, task, origin)


async def test_a_defect_of_ours_costs_one_trajectory_of_a_run(tmp_path: Path) -> None:
    server = MCPServer("shop", log_level="ERROR")

    @server.tool()
    async def add(n: int) -> str:
        """Add."""
        return "added"

    made = environment({"shop": server}, limits={"assistant_turns": 2})
    row = Task(environment="test", task="t", seed=3, prompt=({"role": "user", "content": "Go."},))
    played: list[Trace] = []
    async with Gateway(made, connect=lambda *_: server, name="test") as gateway:
        await play_all(
            [Job(made, row, Origin(sample=sample)) for sample in range(4)],
            gateways={"test": gateway},
            engine=Defective("random"),
            lengths=Lengths(response_tokens=10_000),
            store=TraceStore(tmp_path),
            concurrency=2,
            finished=played.append,
        )
    for traces in (played, list(read_traces(tmp_path))):
        failed = {trace.origin.sample: trace.failure.kind if trace.failure else None for trace in traces}
        assert failed == {0: None, 1: "internal_error", 2: None, 3: None}
