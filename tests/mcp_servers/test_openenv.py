"""OpenEnv servers as worlds: the package's template and one over its MCPEnvironment, started for real."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playing import Stage
from worlds import saying

from mcp_rollout.gateway.errors import GatewayError
from mcp_rollout.mcp_servers.openenv.server import OVER, look
from mcp_rollout.mcp_servers.openenv.session import Address
from mcp_rollout.rollout.contract import Clause, Options, check_environment
from mcp_rollout.rollout.contract.calls import start
from mcp_rollout.rollout.contract.play import CheckSetup
from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.environment.harness import ListedTask
from mcp_rollout.rollout.environment.startup import opened_environment
from mcp_rollout.rollout.formats import hermes
from mcp_rollout.rollout.trace.record import StopReason
from mcp_rollout.rollout.types import Call

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-mcp1" / "bin" / "python"
SERVERS = Path(__file__).parents[1] / "support" / "openenv_servers.py"
pytestmark = [
    pytest.mark.anyio,
    pytest.mark.full,
    pytest.mark.needs("mcp1"),
]


@contextmanager
def serving(kind: str, directory: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The address of a server, and its process."""
    command = [PYTHON, SERVERS, "serve", kind, directory]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}", process
        finally:
            process.kill()


@pytest.fixture(params=["template", "tools"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with serving(request.param, tmp_path) as (url, _):
        yield url


@pytest.fixture
def game(tmp_path: Path) -> Iterator[str]:
    with serving("tools", tmp_path) as (url, _):
        yield url


def environment(url: str, *args: str) -> Environment:
    entry = {
        "command": sys.executable,
        "args": ["-m", "mcp_rollout.mcp_servers.openenv", url, "--test", "3", "--wait-s", "2", *args],
        "cwd": str(ROOT),
        "required": True,
        "trusted": True,
    }
    made = {"name": "openenv", "servers": {"openenv": entry}, "user": {"server": "openenv"}}
    system = {"instructions_of": "openenv"}
    return Environment.model_validate(made | {"tasks": {"server": "openenv"}, "system": system})


def own_client(url: str, calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    told = subprocess.run(
        [PYTHON, SERVERS, "client", url, json.dumps(calls)], capture_output=True, text=True, check=True
    )
    return [json.loads(line) for line in told.stdout.splitlines()]


def action(call: Call) -> dict[str, Any]:
    tool = {"type": "call_tool", "tool_name": call.name, "arguments": call.arguments}
    return call.arguments if call.name == "step" else tool


def text_of(seen: dict[str, Any]) -> str:
    """What the policy has to read of what the package's client saw."""
    observation = seen["observation"]
    if "tool_name" not in observation:
        return json.dumps(observation)
    if observation["error"] is not None:
        return observation["error"]["message"]
    return observation["result"]["content"][0]["text"]


CALLS = {
    "step": [Call(name="step", arguments={"message": text}) for text in ("a", "hello", "", "é\n" * 40)],
    "add": [Call(name="add", arguments={"number": number}) for number in (1, 0, -1, 2, 60)],
}


async def test_ours_sees_what_the_packages_own_client_sees_call_by_call(server: str) -> None:
    made = environment(server)
    async with opened_environment(made) as gateway:
        (listed,) = gateway.catalogue.values()
        names = [tool.name for tool in listed if tool.role is None]
        calls = CALLS["step" if "step" in names else "add"]
        seen = own_client(server, [{"reset": 7}, *({"step": action(call)} for call in calls)])
        setup = CheckSetup(environment=made, gateway=gateway, elsewhere=gateway)
        async with setup.lease(ListedTask(task="openenv-test-0000", seed=7)) as session:
            opening = await start(session, "openenv")
            assert json.loads(opening) == seen[0]["observation"]
            for call, expected in zip(calls, seen[1:], strict=True):
                found = await session.call(call.name, call.arguments)
                assert json_or_text(found.text) == json_or_text(text_of(expected)), call
                assert (found.reward, found.ends_world) == (expected["reward"], expected["done"]), call
            if expected["done"]:
                after = await session.call("add", {"number": 1})
                assert (after.text, after.is_error, after.reward) == (OVER, True, None)


def json_or_text(text: str) -> Any:
    return json.loads(text) if text.startswith("{") else text


async def test_the_step_that_is_done_ends_the_trajectory_with_the_rewards_of_its_turns(
    game: str, tmp_path: Path
) -> None:
    made = environment(game)
    async with opened_environment(made) as gateway:
        stage = Stage(made, gateway, tmp_path / "traces")
        (task, *_) = await stage.tasks("test")
        steps = [hermes.write(calls=[Call(name="add", arguments={"number": 1})])] * 20
        trace = await stage.play(task, saying(*steps))
    assert trace.stop_reason is StopReason.WORLD_DONE and trace.reward is not None
    goal = len(trace.turns)
    assert 3 <= goal <= 9 and trace.reward.score == pytest.approx(0.1 * goal + 1)


async def test_the_contract_holds_and_a_server_of_one_session_says_so(tmp_path: Path) -> None:
    with serving("tools", tmp_path / "a") as (url, _):
        assert (await look(Address(url=url, timeout_s=20, ping_s=10))).most is None
        report = await check_environment(environment(url), Options(tasks=1))
        assert report.failed == [], report.results
    (tmp_path / "b").mkdir()
    with serving("template", tmp_path / "b") as (url, _):
        assert (await look(Address(url=url, timeout_s=20, ping_s=10))).most == 1
        report = await check_environment(environment(url), Options(tasks=1))
    assert set(report.failed) == {Clause.ISOLATION, Clause.SNAPSHOT}
    said = next(result.said for result in report.results if result.clause is Clause.ISOLATION)
    assert "holds 1 session at a time" in said and "SUPPORTS_CONCURRENT_SESSIONS" in said


async def test_a_lost_session_withdraws_the_trajectory_and_is_no_answer_to_the_policy(tmp_path: Path) -> None:
    with serving("tools", tmp_path) as (url, process):
        made = environment(url)
        async with opened_environment(made) as gateway:
            setup = CheckSetup(environment=made, gateway=gateway, elsewhere=gateway)
            async with setup.lease(ListedTask(task="openenv-test-0000", seed=7)) as session:
                assert not (await session.call("add", {"number": 1})).is_error
                process.kill()
                process.wait()
                with pytest.raises(GatewayError, match="the session is lost"):
                    await session.call("add", {"number": 1})
