"""Whole trajectories over servers behind `serve`: their traces are those of local servers, byte for byte."""

from __future__ import annotations

from pathlib import Path

import pytest
from playing import read_environment
from playing_samples import played
from replaying import all_timeless
from served import at

from mcp_rollout.gateway.serve.app import serving
from mcp_rollout.gateway.serve.config import ServeConfig
from mcp_rollout.rollout.engines.engine import EngineOptions
from mcp_rollout.rollout.engines.opening import opened_engine
from mcp_rollout.rollout.environment.startup import opened_environment

pytestmark = pytest.mark.anyio


async def check_alike(name: str, kind: str, tasks: int, out: Path) -> None:
    made = read_environment(name)
    async with opened_engine(EngineOptions(engine=kind)) as engine, opened_environment(made) as local:
        here = await played(local, made, engine, tasks, out / "here")
        async with serving(local, ServeConfig()) as running:
            async with opened_environment(made, hosts=at(running.url)) as gateway:
                there = await played(gateway, made, engine, tasks, out / "there")
            assert running.leases == 0
    assert len(here) == 2 * tasks and all(trace.failure is None for trace in here)
    assert all_timeless(there) == all_timeless(here)


@pytest.mark.parametrize(
    ("name", "kind", "tasks"),
    [("calculator", "expert", 3), ("calculator", "random", 2), ("sandbox", "expert", 2), ("retail", "expert", 3)],
)
async def test_twenty_trajectories_have_the_traces_of_local_servers(
    tmp_path: Path, name: str, kind: str, tasks: int
) -> None:
    await check_alike(name, kind, tasks, tmp_path)
