"""Many conversations at once over HTTP through a relay that breaks connections: no user turn is skipped or doubled."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from dropping import Relay, dropping
from programs import listening_program
from serving import Model, listening

from mcp_rollout import Gateway, GatewayConfig, GatewayError, Session
from mcp_rollout.gateway.errors import CallTimeout, DeliveryUnknown, ProtocolError, ServerUnavailable
from mcp_rollout.gateway.types import Role

pytestmark = pytest.mark.anyio

TURNS = 4
COUNTED = [f"turn {turn}" for turn in range(1, TURNS + 1)]
"""What the policy says to users who count their turns, and what they reply."""
SIZES = [16, pytest.param(512, marks=[pytest.mark.full, pytest.mark.timeout(900)])]
BROKEN = (DeliveryUnknown, ServerUnavailable, ProtocolError, CallTimeout)


def files(directory: Path) -> dict[str, list[str]]:
    """The command lines of users who count their turns."""
    names = [str(turn) for turn in range(1, TURNS + 1)]
    steps = {
        name: {"cues": [{"when": ["[^z]"], "says": f"turn {name}", "to": after}], "otherwise": ["?"]}
        for name, after in zip(names, [*names[1:], "end"], strict=True)
    }
    (directory / "scenarios.json").write_text(json.dumps({"*": {"opening": "Hello.", "first": "1", "steps": steps}}))
    persona = {"persona": "p", "goal": "g", "opening": "Hello.", "max_replies": TURNS + 1}
    (directory / "personas.json").write_text(json.dumps({"*": persona}))
    return {
        "scripted": [
            "mcp_rollout.mcp_servers.user_simulator",
            "scripted",
            "--scenarios",
            str(directory / "scenarios.json"),
        ],
        "model": [
            "mcp_rollout.mcp_servers.user_simulator",
            "model",
            *("--personas", str(directory / "personas.json"), "--timeout-s", "300"),
        ],
    }


@asynccontextmanager
async def program(arguments: list[str], env: dict[str, str]) -> AsyncIterator[int]:
    """The port of a server that runs as a program."""
    command = [sys.executable, "-m", *arguments, "--http"]
    async with listening_program(lambda port: [*command, f"127.0.0.1:{port}"], env=env) as port:
        yield port


async def insist(session: Session, role: Role, arguments: dict[str, Any]) -> Any:
    """Ask until there is an answer, as a harness may that numbers its requests."""
    for _ in range(200):
        try:
            return (await session.invoke(role, arguments, server="user")).structured
        except BROKEN:
            continue
    raise AssertionError(f"{role} was never answered")


async def converse(gateway: Gateway, number: int, task: str, says: list[str], *, twice: bool) -> list[str]:
    """The user's answers to what one agent says, each asked for twice at once where `twice`."""
    async with gateway.lease(trajectory=f"t{number}", task=None, seed=number) as session:
        await insist(session, Role.RESET, {"task": task, "seed": number})
        heard: list[str] = []
        for seq, message in enumerate(says, 1):
            arguments = {"seq": seq, "message": message}
            got: list[Any] = []

            async def once(arguments: dict[str, Any] = arguments, got: list[Any] = got) -> None:
                got.append(await insist(session, Role.REPLY, arguments))

            async with anyio.create_task_group() as asking:
                for _ in range(2 if twice else 1):
                    asking.start_soon(once)
            assert all(reply == got[0] for reply in got), (number, got)
            heard.append(got[0]["message"].lower())
        return heard


async def crowd(
    relay: Relay, conversations: int, *, task: str = "any", says: list[str] = COUNTED, hears: list[str] = COUNTED
) -> None:
    entry = {"url": f"{relay.url}/mcp", "required": True, "start_timeout_s": 60, "call_timeout_s": 300}
    config = GatewayConfig.model_validate({"servers": {"user": entry}, "max_sessions": conversations})
    heard: dict[int, list[str]] = {}
    async with started(config) as gateway, anyio.create_task_group() as tasks:

        async def one(number: int) -> None:
            try:
                heard[number] = await converse(gateway, number, task, says, twice=number % 4 == 0)
            except GatewayError as error:  # the release at the end may be dropped twice: nothing depends on it any more
                assert number in heard, error

        for number in range(conversations):
            tasks.start_soon(one, number)
    assert {number: said for number, said in heard.items() if said != hears} == {}
    assert len(heard) == conversations
    assert relay.dropped_on_the_way > 0 and relay.dropped_on_the_way_back > 0


@asynccontextmanager
async def started(config: GatewayConfig) -> AsyncIterator[Gateway]:
    """A gateway whose first connection may be dropped too."""
    for _ in range(20):
        gateway = Gateway(config)
        try:
            await gateway.__aenter__()
        except GatewayError:
            continue
        try:
            yield gateway
        finally:
            await gateway.__aexit__(None, None, None)
        return
    raise AssertionError("the server was never reached")


@pytest.mark.parametrize("conversations", SIZES)
async def test_no_turn_of_a_scripted_user_is_skipped_or_doubled(conversations: int, tmp_path: Path) -> None:
    async with program(files(tmp_path)["scripted"], {}) as port, dropping(port, share=0.03, seed=1) as relay:
        await crowd(relay, conversations)


@pytest.mark.parametrize("conversations", SIZES)
async def test_no_attempt_at_a_word_problem_is_skipped_or_doubled(conversations: int) -> None:
    """An environment that plays its user itself: each wrong answer is counted once."""
    tries = ["3 more tries", "2 more tries", "one more try"]
    hears = [f"that is not right. you have {left}: go through the steps again." for left in tries]
    hears += ["that is not right. let us leave it at that."]
    attempts = ["mcp_rollout.mcp_servers.gsm8k_tools", "--attempts", str(TURNS)]
    async with program(attempts, {}) as port, dropping(port, share=0.03, seed=3) as relay:
        wrong = [f"Answer: -{seq}" for seq in range(1, TURNS + 1)]
        await crowd(relay, conversations, task="gsm8k-test-0000", says=wrong, hears=hears)


@pytest.mark.parametrize("conversations", SIZES)
async def test_a_model_is_asked_once_for_each_turn_of_a_crowd(conversations: int, tmp_path: Path) -> None:
    model = Model()
    async with listening(model.app) as url:
        env = {"USER_MODEL_URL": f"{url}/v1", "USER_MODEL": "m"}
        async with program(files(tmp_path)["model"], env) as port, dropping(port, share=0.03, seed=2) as relay:
            await crowd(relay, conversations)
    turns = Counter(request["seed"] for request in model.requests)
    assert len(model.requests) == conversations * TURNS and set(turns.values()) == {1}
