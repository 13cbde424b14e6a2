"""The same trajectories here, through `serve`, and over two shards of Ray's: byte-identical traces."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from playing import read_environment
from playing_samples import played
from replaying import all_timeless
from served import at

from mcp_rollout.gateway.serve.app import serving
from mcp_rollout.gateway.serve.config import ServeConfig
from mcp_rollout.rollout.engines.engine import EngineOptions
from mcp_rollout.rollout.engines.opening import opened_engine
from mcp_rollout.rollout.environment.hosts_config import HostsConfig
from mcp_rollout.rollout.environment.startup import opened_environment

pytestmark = [pytest.mark.anyio, pytest.mark.verl, pytest.mark.timeout(1200)]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.parametrize(
    ("name", "kind", "tasks"),
    [
        pytest.param("calculator", "random", 4, marks=pytest.mark.full),
        pytest.param("retail", "random", 100, marks=pytest.mark.full),
        pytest.param("sandbox", "expert", 100, marks=pytest.mark.full),
    ],
)
async def test_two_samples_of_each_task_have_the_same_traces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: str, tasks: int
) -> None:
    pytest.importorskip("ray")
    from mcp_rollout.rollout.shards.director import connected, shard_director
    from mcp_rollout.rollout.shards.hosts import hosts_of

    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    made = read_environment(name)
    shards = HostsConfig.model_validate({"ray": {"min": 2, "max": 2, "resources": {}}})
    sharded = made.model_copy(update={"hosts": shards})
    async with opened_engine(EngineOptions(engine=kind)) as engine:
        async with opened_environment(made) as local:
            here = await played(local, made, engine, tasks, tmp_path / "here")
            async with serving(local, ServeConfig()) as running:
                async with opened_environment(made, hosts=at(running.url)) as gateway:
                    served = await played(gateway, made, engine, tasks, tmp_path / "served")
        assert shards.ray is not None
        with connected({"hosts.ray": shards.ray}):
            async with opened_environment(sharded, hosts=hosts_of(sharded)) as gateway:
                with anyio.fail_after(120):  # else the first shard that is there gets all leases
                    while len((await shard_director().status.remote(made.name)).load) < 2:
                        await anyio.lowlevel.checkpoint()
                over_shards = await played(gateway, made, engine, tasks, tmp_path / "shards")
            status = await shard_director().status.remote(made.name)
    assert len(status.processes) == 2 and status.restarts == 0
    assert len(here) == 2 * tasks and all(trace.failure is None for trace in here)
    assert all_timeless(served) == all_timeless(here) == all_timeless(over_shards)
