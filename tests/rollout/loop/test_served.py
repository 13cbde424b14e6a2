"""Whole trajectories over servers behind `serve`: their traces are those of local servers, byte for byte."""

from __future__ import annotations

from pathlib import Path

import pytest
from playing import read_environment
from replaying import all_timeless
from served import at

from gateway.gateway import Gateway
from gateway.serve.config import ServeConfig
from gateway.serve.server import serving
from rollout.engines.engine import Engine, EngineOptions
from rollout.engines.opening import opened_engine
from rollout.environment.config import Environment
from rollout.environment.rows import environment_tasks
from rollout.environment.startup import opened_environment
from rollout.evaluation.play import Lengths, jobs_of, play_all
from rollout.trace.record import Trace
from rollout.trace.store import TraceStore

pytestmark = pytest.mark.anyio


async def played(gateway: Gateway, made: Environment, engine: Engine, tasks: int, out: Path) -> list[Trace]:
    """Two samples of each task."""
    rows = await environment_tasks(made, gateway, "test", tasks)
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


@pytest.mark.full
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("name", "kind"), [("retail", "expert"), ("retail", "random"), ("sandbox", "expert")])
async def test_two_hundred_trajectories_have_the_traces_of_local_servers(tmp_path: Path, name: str, kind: str) -> None:
    await check_alike(name, kind, 34, tmp_path)
