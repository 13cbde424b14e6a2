"""What holds for every environment that comes along, over the gateway and the servers that its YAML file names.

By default a seeded slice of each; everything under `full`.
"""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random
from typing import Any

import anyio
import anyio.lowlevel
import psutil
import pytest
from mcp.server.mcpserver import MCPServer
from playing import Stage, Watched, read_environment, score_of, staged

from mcp_rollout.mcp_servers import calculator, gsm8k_tools, research, retail, sandbox, user_simulator
from mcp_rollout.mcp_servers.kit.state import TrajectoryState
from mcp_rollout.mcp_servers.retail.users import scenario
from mcp_rollout.rollout.contract import Clause, Options, Outcome, check_environment
from mcp_rollout.rollout.environment.task import Task
from mcp_rollout.rollout.trace.record import Trace

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600)]

Servers = Callable[[], dict[str, MCPServer]]
IN_PROCESS: dict[str, Servers] = {
    "retail": lambda: {"retail": retail.create_server(), "customer": user_simulator.create_server(scenario)},
    "calculator": lambda: {"calculator": calculator.create_server()},
    "gsm8k_tools": lambda: {"gsm8k": gsm8k_tools.create_server()},
    "research": lambda: {"library": research.create_server()},
    "sandbox": lambda: {"sandbox": sandbox.create_server()},
}
"""The servers of an environment, where they can be had without a process."""
SLICE = {
    "retail": 8,
    "calculator": 12,
    "gsm8k_tools": 12,
    "research": 12,
    "sandbox": 2,
    "filesystem_ops": 1,
}
"""Tasks that are played by default."""
ROUNDS = {True: 1000, False: 50}
FULL = [pytest.param(False, id="slice"), pytest.param(True, id="all", marks=[pytest.mark.full])]


@pytest.fixture(scope="module", params=SLICE)
async def stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    async with staged(request.param, tmp_path_factory.mktemp(request.param)) as opened:
        yield opened


async def chosen(stage: Stage, *, full: bool) -> list[Task]:
    """All test tasks, or a slice of them that is the same every time."""
    tasks = await stage.tasks("test")
    name = stage.environment.name
    return tasks if full else Random(name).sample(tasks, SLICE[name])


@pytest.fixture(scope="module")
async def alone(stage: Stage) -> list[tuple[Task, str, Trace]]:
    """Tasks, who plays them, and their traces: two do the same task in their own ways, and one another task."""
    first, *others = await chosen(stage, full=False)
    players = [(first, "expert"), (first, "random"), *((other, "expert") for other in others[:1])]
    return [(task, engine, await stage.play(task, stage.engine(engine, task))) for task, engine in players]


async def test_the_splits_have_a_hundred_tasks_and_share_none(stage: Stage) -> None:
    train, test = await stage.tasks("train"), await stage.tasks("test")
    assert len({task.task for task in [*train, *test]}) == len(train) + len(test)
    assert len(train) + len(test) >= 100 and len(test) >= 40
    assert {task.seed for task in train}.isdisjoint(task.seed for task in test)
    assert {task.prompt[-1]["content"] for task in train}.isdisjoint(task.prompt[-1]["content"] for task in test)
    assert {"difficulty"} <= set(stage.environment.description.lower().replace(":", " ").split())


@pytest.mark.parametrize("full", FULL)
async def test_the_expert_earns_all_there_is(stage: Stage, full: bool) -> None:
    for task in await chosen(stage, full=full):
        trace = await stage.play(task, stage.engine("expert", task))
        assert trace.reward is not None and set(trace.reward.parts) == set(stage.environment.reward.parts)
        assert score_of(trace) == pytest.approx(1.0), (task.task, trace.reward)


@pytest.mark.parametrize("full", FULL)
@pytest.mark.parametrize("engine", ["random", "chatter", "none"])
async def test_who_does_anything_or_nothing_earns_little(stage: Stage, engine: str, full: bool) -> None:
    assert await stage.mean(engine, await chosen(stage, full=full)) <= 0.2


async def test_the_same_seed_is_the_same_world_in_another_process(
    stage: Stage, alone: list[tuple[Task, str, Trace]], tmp_path: Path
) -> None:
    name = stage.environment.name
    async with staged(name, tmp_path, within=IN_PROCESS[name]() if name in IN_PROCESS else None) as other:
        assert await other.tasks("test") == await stage.tasks("test")
        for task, engine, there in alone:
            here = await other.play(task, other.engine(engine, task))
            assert other.heard(here) == stage.heard(there) and here.reward == there.reward


async def test_trajectories_side_by_side_see_what_each_would_see_alone(
    stage: Stage, alone: list[tuple[Task, str, Trace]]
) -> None:
    together: dict[int, Trace] = {}
    everybody, arrived = anyio.Event(), set[int]()

    async def play(number: int, task: Task, engine: str) -> None:
        async def policy_for(session: Any) -> Watched:
            return Watched(await stage.engine(engine, task)(session), before)

        async def before(turn: int) -> None:  # no turn is taken before all have a world
            arrived.add(number)
            if len(arrived) == len(alone):
                everybody.set()
            await everybody.wait()

        together[number] = await stage.play(task, policy_for)

    with anyio.fail_after(120):
        async with anyio.create_task_group() as group:
            for number, (task, engine, _) in enumerate(alone):
                group.start_soon(play, number, task, engine)
    for number, (_, _, trace) in enumerate(alone):
        assert stage.heard(together[number]) == stage.heard(trace) and together[number].reward == trace.reward


@pytest.mark.parametrize(
    "name",
    [
        "calculator",
        "gsm8k_tools",
        *(pytest.param(name, marks=pytest.mark.full) for name in SLICE if name not in ("calculator", "gsm8k_tools")),
    ],
)
async def test_each_environment_keeps_the_contract(name: str) -> None:
    report = await check_environment(read_environment(name), Options(tasks=1))
    assert report.failed == [], report.results
    untested = {result.clause for result in report.results if result.outcome is Outcome.UNTESTED}
    assert untested <= {Clause.REPLY, Clause.ELICIT, Clause.FUNCTIONS, Clause.SNAPSHOT}


@pytest.mark.parametrize("full", FULL)
@pytest.mark.parametrize("name", IN_PROCESS)
async def test_worlds_leave_no_row_behind(name: str, full: bool, tmp_path: Path) -> None:
    gc.collect()
    held = states()  # kept, so that no new state can take the address of an old one
    before = {id(found) for found in held}
    async with staged(name, tmp_path, within=IN_PROCESS[name]()) as stage:
        tasks = await stage.tasks("test", 40)
        mine = [found for found in states() if id(found) not in before]
        assert mine
        for number in range(ROUNDS[full]):
            async with stage.gateway.lease(trajectory=f"{number}", task=tasks[number % 40].task, seed=number):
                assert all(len(state) == 1 for state in mine)
        assert all(len(state) == 0 for state in mine)


@pytest.mark.parametrize("full", FULL)
@pytest.mark.parametrize(
    # What the gateway does with processes and directories of leases is tested in tests/gateway/test_scopes.py.
    "name",
    [name if name in IN_PROCESS else pytest.param(name, marks=pytest.mark.full) for name in SLICE],
)
async def test_worlds_leave_no_file_and_no_process_behind(
    name: str, full: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, traces = tmp_path / "temporary", tmp_path / "traces"
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    myself = psutil.Process()
    before = {child.pid for child in myself.children(recursive=True)}
    async with staged(name, traces) as stage:
        tasks = await stage.tasks("test", 40)
        async with stage.gateway.lease(trajectory="warm", task=tasks[0].task, seed=0):
            pass
        files, running = below(place), children(myself)
        # A process of its own for each trajectory takes a second or two to start.
        rounds = ROUNDS[full] if name in IN_PROCESS else ROUNDS[full] // 25
        for number in range(rounds):
            async with stage.gateway.lease(trajectory=f"{number}", task=tasks[number % 40].task, seed=number):
                pass
            if name not in IN_PROCESS:
                await swept(myself, place, before)
        if name in IN_PROCESS:
            assert below(place) == files and children(myself) == running
    assert not below(place)
    assert {child.pid for child in myself.children(recursive=True)} <= before


def states() -> list[TrajectoryState[Any]]:
    # By `type`: `isinstance` asks a stranger's object for its `__class__`, and some warn when they are asked.
    return [found for found in gc.get_objects() if issubclass(type(found), TrajectoryState)]


async def swept(myself: psutil.Process, place: Path, before: set[int]) -> None:
    """While the gateway runs: no process is left of a trajectory, and no directory; only who sweeps up after us."""
    with anyio.fail_after(60):
        while len({child.pid for child in myself.children(recursive=True)} - before) > 1 or leases(place):
            await anyio.lowlevel.checkpoint()


def leases(place: Path) -> list[Path]:
    return [*place.glob("mcp-rollout-lease-*/*")]


def below(place: Path) -> set[Path]:
    return {*place.rglob("*")}


def children(process: psutil.Process) -> dict[int, int]:
    """By process, how many files it has open."""
    return {child.pid: child.num_fds() for child in process.children(recursive=True)}
