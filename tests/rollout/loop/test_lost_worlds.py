"""Trajectories whose server is killed: they end as `world_lost`, and begin again where the environment says so."""

from __future__ import annotations

import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from worlds import task

from mcp_rollout.gateway.errors import WorldLost
from mcp_rollout.gateway.gateway import Gateway
from mcp_rollout.gateway.leases.session import Session
from mcp_rollout.rollout.engines.scripted import ScriptedPolicy
from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.environment.task import Origin
from mcp_rollout.rollout.formats import hermes
from mcp_rollout.rollout.loop.group import Group
from mcp_rollout.rollout.loop.limits import Limits
from mcp_rollout.rollout.loop.trajectory import roll_out
from mcp_rollout.rollout.tokens.chatml import IM_END, ByteTokens
from mcp_rollout.rollout.trace.record import StopReason, Trace, worlds_lost
from mcp_rollout.rollout.trace.store import TraceStore, read_traces
from mcp_rollout.rollout.training.statistics import BatchStatistics, TrajectoryStatistics
from mcp_rollout.rollout.types import Call, Completion, Policy

pytestmark = pytest.mark.anyio
SERVER = Path(__file__).parents[2] / "support" / "echo_server.py"
CALL = hermes.write(calls=[Call(name="shout", arguments={"text": "plum"})])


def environment(attempts: int, **fields: Any) -> Environment:
    entry = {
        "command": sys.executable,
        "args": [str(SERVER)],
        "scope": "process",
        "roles": {"score": "judge"},
        "tools": {"allow": ["shout", "judge"]},
    }
    reward = {"server": "echo", "parts": ["letters"]}
    limits = {"attempts": attempts}
    return Environment.model_validate(
        {"name": "test", "servers": {"echo": entry}, "reward": reward, "limits": limits, **fields}
    )


class Killing:
    """Policies that call a tool twice and then answer. The first `deaths` of them kill the server between the calls."""

    def __init__(self, deaths: int) -> None:
        self.deaths = deaths
        self.worlds: list[tuple[int, int | None]] = []
        """Seed and process of each attempt."""

    async def __call__(self, session: Session) -> Policy:
        pid = session.connection("echo").pid
        self.worlds.append((session.seed, pid))
        return Attempt(pid if len(self.worlds) <= self.deaths else None)


class Attempt(ScriptedPolicy):
    def __init__(self, victim: int | None) -> None:
        super().__init__([CALL, CALL, "PLUM"], ByteTokens().encode, stop=IM_END)
        self._victim = victim

    async def generate(self, ids: list[int], *, max_tokens: int, turn: int) -> Completion:
        if turn == 1 and self._victim is not None:
            os.kill(self._victim, signal.SIGKILL)
        return await super().generate(ids, max_tokens=max_tokens, turn=turn)


async def play(made: Environment, policies: Killing, directory: Path, *, leaves: int = 1) -> list[Trace]:
    """The trajectories of one row, at once."""
    group, played = (
        Group(leaves),
        [Trace.begin(f"leaf-{sample}", task(), Origin(sample=sample)) for sample in range(leaves)],
    )
    async with Gateway(made) as gateway, anyio.create_task_group() as tasks:
        for trace in played:
            tasks.start_soon(
                partial(
                    roll_out,
                    trace,
                    environment=made,
                    gateway=gateway,
                    policy_for=policies,
                    tokens=ByteTokens(),
                    limits=Limits(response_tokens=20_000),
                    store=TraceStore(directory),
                    group=group,
                )
            )
    return played


async def test_by_default_a_lost_world_withdraws_the_trajectory(tmp_path: Path) -> None:
    (trace,) = await play(environment(1), policies := Killing(deaths=1), tmp_path)
    assert trace.stop_reason is StopReason.FAILED and trace.failure is not None
    assert trace.failure.kind == WorldLost.code == "world_lost" and "killed by SIGKILL" in trace.failure.message
    assert len(policies.worlds) == 1 and len(list(read_traces(tmp_path))) == 1
    assert len(trace.turns) == 2 and not trace.turns[0].tools[0].is_error


async def test_with_two_attempts_it_begins_again_in_a_fresh_world_with_the_same_seed(tmp_path: Path) -> None:
    (trace,) = await play(environment(2), policies := Killing(deaths=1), tmp_path)
    assert trace.stop_reason is StopReason.ANSWERED and trace.reward is not None and len(trace.turns) == 3
    (one, other) = policies.worlds
    assert one[0] == other[0] == task().seed and one[1] != other[1]
    first, last = read_traces(tmp_path)
    assert (first.id, first.origin.attempt, last.id, last.origin.attempt) == ("leaf-0", 0, trace.id, 1)
    assert first.failure is not None and first.failure.kind == "world_lost" and last.failure is None
    assert first.id != last.id and last.messages[: last.opening] == first.messages[: first.opening]


async def test_the_last_attempt_counts_and_each_lost_world_is_counted(tmp_path: Path) -> None:
    (trace,) = await play(environment(2), Killing(deaths=9), tmp_path)
    assert trace.failure is not None and trace.failure.kind == "world_lost" and trace.origin.attempt == 1
    assert len(list(read_traces(tmp_path))) == worlds_lost(trace) == 2
    metrics = BatchStatistics([TrajectoryStatistics.of(trace)]).metrics()
    assert metrics["mcp/worlds_lost"] == 2 and metrics["mcp/trajectories"] == 1 and metrics["mcp/failed_share"] == 1
