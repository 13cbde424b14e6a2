"""Our own clients under `lab.benchmarks.faults`, and its judge: a slice of what that measures."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from served import at, served

from lab.benchmarks.faults.adapters.gateway_client import leasing
from lab.benchmarks.faults.cells import target_of
from lab.benchmarks.faults.judge import Figures, judge, read_log
from lab.benchmarks.faults.plan import ONLY_HTTP, Fault, Plan, text_of
from lab.benchmarks.faults.workload import Call, Open, Playing, Task
from mcp_rollout import Gateway, GatewayConfig, GatewayError

pytestmark = pytest.mark.anyio

# A changed tool ends every later lease; and over pipes, an answer with the id of another call in flight is that call's.
MIXED = {
    "stdio": tuple(kind for kind in Fault if kind not in {*ONLY_HTTP, Fault.CHANGED, Fault.WRONG_ID}),
    "http": tuple(kind for kind in Fault if kind is not Fault.CHANGED),
    "serve": tuple(kind for kind in Fault if kind is not Fault.CHANGED),
}


def config(target: dict[str, Any], **bounds: float) -> GatewayConfig:
    scope = "process" if "command" in target else "session"
    entry = {**target, "scope": scope, "required": True, "close_timeout_s": 1, **bounds}
    return GatewayConfig.model_validate({"servers": {"faults": entry}})


@asynccontextmanager
async def gateway_of(over: str, target: dict[str, Any], **bounds: float) -> AsyncGenerator[Gateway]:
    made = config(target, **bounds)
    if over != "serve":
        async with Gateway(made) as gateway:
            yield gateway
        return
    async with served(made) as running, Gateway(made, hosts=at(running.url)) as gateway:
        yield gateway


async def played(task: Task, opened: Open, folder: Path) -> Figures:
    """The figures of trajectories that were played in this process."""
    playing = Playing(task, opened)
    await playing.run()
    return judge(task, read_log((folder / "log.jsonl").read_text().splitlines()), playing.reports)


@pytest.mark.parametrize("over", MIXED)
@pytest.mark.parametrize("seed", ["a", pytest.param("b", marks=pytest.mark.full)])
async def test_no_call_runs_twice_and_no_trajectory_is_whole_with_a_state_that_it_was_not_told(
    over: str, seed: str, tmp_path: Path
) -> None:
    plan = Plan(seed=seed, kinds=MIXED[over], share=0.2)
    with target_of("stdio" if over == "stdio" else "http", tmp_path, plan) as target:
        async with gateway_of(over, target, call_timeout_s=1) as gateway:
            task = Task(target=target, best=True, report="", trajectories=10, lanes=10)
            found = await played(task, leasing(gateway), tmp_path)
    wrong = (found.twice, found.foreign, found.silent, found.elsewhere, found.hangs)
    assert wrong == (0, 0, 0, 0, 0), f"seed {seed}: {dataclasses.asdict(found)}"
    assert found.faults


@pytest.mark.parametrize("over", ["http", *(pytest.param(over, marks=pytest.mark.full) for over in ("stdio", "serve"))])
async def test_a_run_without_faults_is_clean(over: str, tmp_path: Path) -> None:
    with target_of("stdio" if over == "stdio" else "http", tmp_path, Plan(seed="a", kinds=())) as target:
        async with gateway_of(over, target) as gateway:
            task = Task(target=target, best=False, report="", trajectories=4, lanes=4)
            found = await played(task, leasing(gateway), tmp_path)
    assert found.is_clean and (found.calls, found.faults) == (40, 0), dataclasses.asdict(found)


async def test_a_trajectory_whose_tools_changed_is_not_whole(tmp_path: Path) -> None:
    with target_of("stdio", tmp_path, Plan(seed="a", kinds=(Fault.CHANGED,), share=0.2)) as target:
        async with gateway_of("stdio", target) as gateway:
            task = Task(target=target, best=False, report="", trajectories=1, lanes=1)
            found = await played(task, leasing(gateway), tmp_path)
    assert found.faults and found.lost and (found.unread, found.silent) == (0, 0), dataclasses.asdict(found)


def repeating(gateway: Gateway) -> Open:
    """A client that sends what broke again, in a new session."""

    @asynccontextmanager
    async def opened(trajectory: str) -> AsyncGenerator[Call]:
        once = leasing(gateway)

        async def call(tool: str, arguments: dict[str, Any]) -> tuple[str, bool]:
            while True:
                try:
                    async with once(trajectory) as first:
                        return await first(tool, arguments)
                except GatewayError:
                    continue

        yield call

    return opened


def mixing(gateway: Gateway) -> Open:
    """A client that gives the second call of each turn the result of the first."""

    @asynccontextmanager
    async def opened(trajectory: str) -> AsyncGenerator[Call]:
        async with leasing(gateway)(trajectory) as right:

            async def call(tool: str, arguments: dict[str, Any]) -> tuple[str, bool]:
                _, is_error = await right(tool, arguments)
                return text_of(arguments["id"][:-1] + "0"), is_error

            yield call

    return opened


def silent(gateway: Gateway) -> Open:
    """A client that reports what broke as a result, and one call of each turn as done without sending it."""

    @asynccontextmanager
    async def opened(trajectory: str) -> AsyncGenerator[Call]:
        async with leasing(gateway)(trajectory) as right:

            async def call(tool: str, arguments: dict[str, Any]) -> tuple[str, bool]:
                name = arguments["id"]
                return await right(tool, arguments) if name.endswith("0") else (text_of(name), False)

            yield call

    return opened


@pytest.mark.parametrize(
    ("client", "caught"), [(repeating, {"twice", "silent"}), (mixing, {"foreign", "silent"}), (silent, {"silent"})]
)
async def test_the_judge_finds_what_a_client_does_wrong(client: Any, caught: set[str], tmp_path: Path) -> None:
    kinds = (Fault.AFTER,) if client is repeating else ()
    with target_of("http", tmp_path, Plan(seed="a", kinds=kinds, share=0.3)) as target:
        async with gateway_of("http", target) as gateway:
            task = Task(target=target, best=False, report="", trajectories=2, lanes=2, turns=3)
            found = await played(task, client(gateway), tmp_path)
    figures = dataclasses.asdict(found)
    assert {name for name in ("twice", "foreign", "silent", "lost", "hangs") if figures[name]} == caught, figures


async def test_the_judge_finds_a_call_that_never_ends(tmp_path: Path) -> None:
    with target_of("http", tmp_path, Plan(seed="a", kinds=(Fault.HANG,), share=1)) as target:
        async with gateway_of("http", target, call_timeout_s=60) as gateway:
            task = Task(target=target, best=False, report="", trajectories=2, lanes=2, turns=3, deadline_s=0.5)
            found = await played(task, leasing(gateway), tmp_path)
    assert found.hangs and found.lost, dataclasses.asdict(found)


def test_which_call_meets_which_fault_depends_on_the_seed_and_the_call_alone() -> None:
    plan, other = Plan(seed="a", kinds=tuple(Fault), share=0.5), Plan(seed="b", kinds=tuple(Fault), share=0.5)
    names = [f"t{number}.0.0" for number in range(200)]
    drawn = [plan.fault(name) for name in names]
    assert [plan.fault(name) for name in reversed(names)][::-1] == drawn
    assert set(Fault) <= set(drawn) and [other.fault(name) for name in names] != drawn
