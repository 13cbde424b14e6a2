"""The leaderboard's trajectories side by side and one after another: none sees another, and none leaves anything."""

from __future__ import annotations

import gc
import importlib
import json
import sys
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import getcontext
from pathlib import Path
from random import Random
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from bfcl_players import FUNCTIONS, decoded, ground_truth, perturbed, scripted, texts, verdicts
from playing import Stage, Watched, read_environment, score_of, staged

from mcp_rollout.gateway.gateway import Gateway
from mcp_rollout.mcp_servers import bfcl
from mcp_rollout.mcp_servers.bfcl import package
from mcp_rollout.mcp_servers.bfcl.tasks import load_tasks
from mcp_rollout.rollout.contract import Clause, Options, Outcome, check_environment
from mcp_rollout.rollout.engines.random_arguments import random_arguments
from mcp_rollout.rollout.engines.scripted import RandomPolicy
from mcp_rollout.rollout.environment.task import Task
from mcp_rollout.rollout.formats import hermes
from mcp_rollout.rollout.loop.trajectory import PolicyFor
from mcp_rollout.rollout.tokens.chatml import IM_END, ByteTokens
from mcp_rollout.rollout.trace.record import StopReason, Trace
from mcp_rollout.rollout.types import Call, Policy

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(900)]
FULL = [pytest.param(False, id="slice"), pytest.param(True, id="all", marks=pytest.mark.full)]
NAME = "bfcl:category=base"


@asynccontextmanager
async def stage_for(trajectories: int, traces: Path) -> AsyncIterator[Stage]:
    """One server for the tasks of all categories, and room for so many trajectories at a time."""
    environment = read_environment(NAME).model_copy(update={"max_sessions": trajectories})
    server = bfcl.create_server()
    async with Gateway(environment, connect=lambda *_: server) as gateway:
        yield Stage(environment, gateway, traces)


def some_tasks(count: int, seed: str) -> list[Task]:
    """Tasks of all categories, as rows have them."""
    every = [task for category in package.CATEGORIES for task in load_tasks(category)]
    return [
        Task(
            environment=NAME,
            task=task.name,
            seed=task.scenario,
            tools=tuple(name for name in task.functions if name not in task.revealed),
            later_tools=tuple(task.revealed),
            prompt=({"role": "user", "content": task.message(0, FUNCTIONS)},),
        )
        for task in Random(seed).sample(every, count)
    ]


def player_of(task: Task) -> PolicyFor:
    """Random calls for every fourth task, else the perturbed ground truth, in steps."""

    async def random_calls(session: Any) -> Policy:
        return RandomPolicy(session, ByteTokens().encode, stop=IM_END, seed=task.seed)

    if task.seed % 4 == 0:
        return random_calls
    rng = Random(task.task)
    return scripted(texts(perturbed(task.task, rng)[0], rng))


@pytest.mark.parametrize("full", FULL)
async def test_trajectories_side_by_side_score_as_they_do_alone(full: bool, tmp_path: Path) -> None:
    tasks = some_tasks(256 if full else 32, "side by side")
    async with stage_for(len(tasks), tmp_path) as stage:
        alone = [await stage.play(task, player_of(task)) for task in tasks]
        together: dict[str, Trace] = {}
        all_begun = anyio.Event()
        begun: set[str] = set()

        async def play(task: Task) -> None:
            waits = Random(task.task)

            async def before(turn: int) -> None:  # no turn is taken until every trajectory has a world
                begun.add(task.task)
                if len(begun) == len(tasks):
                    all_begun.set()
                await all_begun.wait()
                for _ in range(waits.randrange(20)):
                    await anyio.lowlevel.checkpoint()

            async def policy_for(session: Any) -> Policy:
                return Watched(await player_of(task)(session), before)

            together[task.task] = await stage.play(task, policy_for)

        async with anyio.create_task_group() as group:
            for task in tasks:
                group.start_soon(play, task)
    for trace in alone:
        beside = together[trace.task.task]
        assert beside.reward == trace.reward and stage.heard(beside) == stage.heard(trace)
    assert {score_of(trace) for trace in alone} == {0.0, 1.0}


def module_globals() -> dict[str, str]:
    """The data of the package's modules, as text, and what its methods set in libraries."""
    for name in package.CLASSES:  # each may have a module that nothing has imported so far
        package.api_class(name)
    names = [name for name in sys.modules if name.startswith("bfcl_eval.eval_checker.multi_turn_eval")]
    found = {
        f"{name}.{key}": json.dumps(value, default=repr, sort_keys=True)
        for name in names
        for key, value in vars(importlib.import_module(name)).items()
        if isinstance(value, dict | list | int | float | str) and not key.startswith("__")
    }
    mpmath = importlib.import_module("mpmath")
    return found | {"decimal": f"{getcontext().prec}", "mpmath": f"{mpmath.mp.prec}"}


def objects() -> int:
    """API objects, files and directories alive."""
    kinds = {package.api_class(name) for name in package.CLASSES}
    files = importlib.import_module(package.api_class("GorillaFileSystem").__module__)
    return sum(type(found) in {*kinds, files.File, files.Directory} for found in gc.get_objects())


@pytest.mark.parametrize("full", FULL)
async def test_resets_leave_nothing(full: bool, tmp_path: Path) -> None:
    rounds = 1000 if full else 100
    tasks = some_tasks(100, "resets")
    rng = Random("calls")
    gc.collect()
    alive, before = objects(), module_globals()
    async with stage_for(2, tmp_path) as stage:

        async def play(number: int) -> None:
            task = tasks[number % len(tasks)]
            async with stage.gateway.lease(
                trajectory=f"{number}", task=task.task, seed=0, tools=task.callable_tools
            ) as session:
                for name in rng.sample(sorted(session.tools), 5):
                    await session.call(name, random_arguments(session.tools[name].input_schema, rng))

        # Traced from before the warm-up: of what a full cache then drops, the tracer has to know the size.
        tracemalloc.start()
        for number in range(len(tasks)):  # whatever is cached is cached now
            await play(number)
        gc.collect()
        held = tracemalloc.take_snapshot()
        for number in range(len(tasks), len(tasks) + rounds):
            await play(number)
        gc.collect()
        changes = tracemalloc.take_snapshot().compare_to(held, "lineno")
        tracemalloc.stop()
        assert objects() == alive
    assert module_globals() == before
    # The names of released trajectories are kept: 100 bytes each, with the lists that they are in.
    grown = sum(change.size_diff for change in changes)
    assert grown < 300_000 + 500 * rounds, "\n".join(map(str, changes[:10]))


async def test_a_thermometer_and_a_logarithm_leave_the_modules_as_they_were(tmp_path: Path) -> None:
    before = module_globals()
    task = next(task for task in load_tasks("long_context") if {"VehicleControlAPI", "MathAPI"} == set(task.classes))
    async with stage_for(1, tmp_path) as stage:
        async with stage.gateway.lease(trajectory="t", task=task.name, seed=0) as session:
            weather = json.loads((await session.call("get_outside_temperature_from_google", {})).text)
            assert "outsideTemperature" in weather
            long = await session.call("logarithm", {"value": 2, "base": 3, "precision": 40})
            assert len(long.text) > 40
            assert len((await session.call("square_root", {"number": 2, "precision": 60})).text) > 20
    assert module_globals() == before


def test_a_card_of_the_long_context_is_charged_in_its_own_trajectory_only() -> None:
    """The package hands the same card to all trajectories of its process."""
    tasks = [task for task in load_tasks("long_context") if "TravelAPI" in task.classes]
    worlds = [bfcl.server.World.begin(task) for task in tasks[:2]]
    cards = [world.model.by_class["TravelAPI"].credit_card_list for world in worlds]
    shared = next(iter(cards[0].keys() & cards[1].keys()))
    assert cards[0][shared] is not cards[1][shared]
    # Within a world both sides have one, as when the package checks.
    assert worlds[0].truth.by_class["TravelAPI"].credit_card_list[shared] is cards[0][shared]


@pytest.mark.parametrize("full", FULL)
@pytest.mark.parametrize("category", package.CATEGORIES)
@pytest.mark.parametrize("engine", ["random", "none"])
async def test_random_calls_and_silence_earn_next_to_nothing(
    engine: str, category: package.Category, full: bool, tmp_path: Path
) -> None:
    async with staged(
        f"bfcl:category={category}", tmp_path, within={"bfcl": bfcl.create_server(category=category)}
    ) as stage:
        tasks = await stage.tasks("all")
        mean = await stage.mean(engine, tasks if full else Random(category).sample(tasks, 5))
    assert mean == 0.0


LOOK = Call(name="displayCarStatus", arguments={"option": "fuel"})


@pytest.mark.parametrize(("steps", "ends"), [(20, StopReason.USER_DONE), (21, StopReason.TURN_LIMIT)])
@pytest.mark.parametrize("where", ["first", "last"])
async def test_a_user_turn_has_twenty_steps_and_an_answer(
    steps: int, ends: StopReason, where: str, tmp_path: Path
) -> None:
    """As the package counts: a 21st step is executed and ends the trajectory. In the last user turn it still counts."""
    task = next(
        task
        for task in some_tasks(800, "steps")
        if (found := bfcl.server.find_task(task.task)).category == "base"
        and found.classes[0] == "VehicleControlAPI"
        and len(found.questions) == 2
    )
    completions = texts(ground_truth(task.task))
    at = 0 if where == "first" else 2
    completions[at:at] = [hermes.write(calls=[LOOK])] * (steps - 1)
    async with stage_for(1, tmp_path) as stage:
        trace = await stage.play(task, scripted(completions))
    assert trace.stop_reason is ends
    assert score_of(trace) == float(ends is StopReason.USER_DONE or where == "last")
    (verdict,) = verdicts([(task.task, decoded(trace))])
    assert score_of(trace) == float(verdict["valid"])


@pytest.mark.full
async def test_the_environment_keeps_the_contract() -> None:
    report = await check_environment(read_environment("bfcl:category=miss_func"), Options(tasks=1))
    assert report.failed == [], report.results
    untested = {result.clause for result in report.results if result.outcome is Outcome.UNTESTED}
    assert untested <= {Clause.ELICIT, Clause.FUNCTIONS, Clause.SNAPSHOT}
