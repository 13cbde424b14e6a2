"""Worlds on the nodes of a Ray cluster of several node processes, one of which is killed."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from worlds import task

from mcp_rollout.gateway.gateway import Gateway
from mcp_rollout.gateway.leases.session import Session
from mcp_rollout.rollout.engines.scripted import ScriptedPolicy
from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.environment.task import Origin
from mcp_rollout.rollout.formats import hermes
from mcp_rollout.rollout.loop.limits import Limits
from mcp_rollout.rollout.loop.trajectory import roll_out
from mcp_rollout.rollout.tokens.chatml import IM_END, ByteTokens
from mcp_rollout.rollout.trace.record import StopReason, Trace
from mcp_rollout.rollout.trace.store import TraceStore, read_traces
from mcp_rollout.rollout.types import Call, Completion, Policy

pytestmark = [pytest.mark.anyio, pytest.mark.verl]

ROOT = Path(__file__).parents[3]
TURNS, IDLE_S = 4, 20.0


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def nodes(request: pytest.FixtureRequest) -> Iterator[list[Any]]:
    """Nodes for shards, of a cluster whose head has none."""
    pytest.importorskip("ray")
    import ray
    from ray.cluster_utils import Cluster

    os.environ |= {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    size = {"object_store_memory": 80 << 20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, **size})
    found = [cluster.add_node(num_cpus=0, resources={"mcp_shard": 1}, **size) for _ in range(request.param)]
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "support")])
    ray.init(
        address=cluster.address,
        runtime_env={"env_vars": {"PYTHONPATH": path}},
        logging_level="ERROR",
        log_to_driver=False,
    )
    for node in found:
        node.kill = partial(cluster.remove_node, node, allow_graceful=False)
    yield found
    ray.shutdown()
    cluster.shutdown()


def environment(ledger: Path, shards: int, sessions: int) -> Environment:
    entry = {
        "command": sys.executable,
        "args": [str(ROOT / "tests" / "support" / "ledger_server.py")],
        "env": {"LEDGER": str(ledger)},
        "roles": {"reset": "reset", "score": "judge"},
    }
    hosts = {"min": shards, "max": shards, "lost_after_s": 10.0, "idle_s": IDLE_S}
    return Environment.model_validate(
        {
            "name": "ledger",
            "servers": {"ledger": entry},
            "reward": {"server": "ledger", "parts": ["letters"]},
            "limits": {"attempts": 2},
            "max_sessions": sessions,
            "hosts": {"ray": hosts},
        }
    )


class Barrier:
    """Policies that call a tool `TURNS` times and answer; in the middle of all first attempts, a node is killed."""

    def __init__(self, trajectories: int, kill: Any) -> None:
        self._left, self._kill = trajectories, kill
        self._passed = anyio.Event()

    async def __call__(self, session: Session) -> Policy:
        ids = [f"{session.trajectory}/{turn}" for turn in range(TURNS)]
        calls = [hermes.write(calls=[Call(name="shout", arguments={"text": "plum", "id": id})]) for id in ids]
        return Waiting([*calls, "Done."], self.wait)

    async def wait(self) -> None:
        self._left -= 1
        if self._left == 0:
            await self._kill()
            self._passed.set()
        await self._passed.wait()


class Waiting(ScriptedPolicy):
    def __init__(self, texts: list[str], wait: Any) -> None:
        super().__init__(texts, ByteTokens().encode, stop=IM_END)
        self._wait = wait

    async def generate(self, ids: list[int], *, max_tokens: int, turn: int) -> Completion:
        if turn == TURNS // 2:
            await self._wait()
        return await super().generate(ids, max_tokens=max_tokens, turn=turn)


async def play(made: Environment, trajectories: int, kill: Any, directory: Path, *, shards: int) -> list[Trace]:
    """The trajectories at once, each in its last attempt; returns once every place of so many shards is free."""
    from mcp_rollout.rollout.shards.director import shard_director
    from mcp_rollout.rollout.shards.hosts import hosts_of

    traces = [Trace.begin(f"t{number}", task(), Origin(row=number)) for number in range(trajectories)]
    director = shard_director()

    async def end_one() -> None:
        await kill((await director.status.remote(made.name)).processes[0])

    policies = Barrier(trajectories, end_one)
    async with Gateway(made, hosts=hosts_of(made)) as gateway:
        with anyio.fail_after(90):  # else the first shard that is there gets all leases
            while (status := await director.status.remote(made.name)) is None or len(status.load) < shards:
                await anyio.lowlevel.checkpoint()
        async with anyio.create_task_group() as tasks:
            for trace in traces:
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
                    )
                )
        ended = anyio.current_time()
        with anyio.fail_after(90):
            while (status := await director.status.remote(made.name)) and any(status.load.values()):
                await anyio.lowlevel.checkpoint()
            assert anyio.current_time() - ended < IDLE_S + 5
            while len(status.load) < shards:  # a restarted one starts its servers first
                status = await director.status.remote(made.name)
    assert len(status.load) == shards and not any(status.load.values())
    return traces


def check(traces: list[Trace], home: Path, *, most_lost: int) -> None:
    """Every row has an outcome, and no call was executed twice."""
    assert {trace.stop_reason for trace in traces} == {StopReason.ANSWERED}
    again = [trace for trace in traces if trace.origin.attempt]
    # Leases go to the least loaded shard; one that is looked at less often gets a few more.
    assert 0 < len(again) <= most_lost
    lost = [trace for trace in read_traces(home / "traces") if trace.failure]
    assert {trace.failure.kind for trace in lost if trace.failure} == {"world_lost"} and len(lost) == len(again)
    ran = Counter((home / "ledger").read_text().split())
    assert set(ran.values()) == {1}
    assert {f"{trace.id}/{turn}" for trace in traces for turn in range(TURNS)} <= ran.keys()


@pytest.mark.parametrize("nodes", [2], indirect=True)
async def test_32_leases_on_two_shards_survive_the_end_of_one_which_ray_restarts(
    nodes: list[Any], tmp_path: Path
) -> None:
    async def kill(process: int) -> None:
        os.kill(process, signal.SIGKILL)

    made = environment(tmp_path / "ledger", 2, 32)
    check(await play(made, 32, kill, tmp_path / "traces", shards=2), tmp_path, most_lost=24)


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("nodes", [4], indirect=True)
async def test_1024_leases_on_four_shards_survive_the_end_of_a_node(nodes: list[Any], tmp_path: Path) -> None:
    async def kill(_: int) -> None:
        await anyio.to_thread.run_sync(nodes[0].kill)

    made = environment(tmp_path / "ledger", 4, 1024)
    check(await play(made, 1024, kill, tmp_path / "traces", shards=3), tmp_path, most_lost=512)
