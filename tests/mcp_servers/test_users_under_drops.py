"""Many conversations at once over HTTP through a relay that breaks connections: no user turn is skipped or doubled."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from dropping import Relay, dropping
from programs import listening_program

from mcp_rollout import Gateway, GatewayConfig, GatewayError, Session
from mcp_rollout.gateway.errors import CallTimeout, DeliveryUnknown, ProtocolError, ServerUnavailable
from mcp_rollout.gateway.types import Role

pytestmark = pytest.mark.anyio

TURNS = 4
COUNTED = [f"turn {turn}" for turn in range(1, TURNS + 1)]
"""What the policy says to users who count their turns, and what they reply."""
SIZES = [16, pytest.param(512, marks=[pytest.mark.full, pytest.mark.timeout(900)])]
BROKEN = (DeliveryUnknown, ServerUnavailable, ProtocolError, CallTimeout)


@asynccontextmanager
async def user_who_counts(directory: Path) -> AsyncIterator[int]:
    """The port of a scripted user who counts their turns, which runs as a program."""
    names = [str(turn) for turn in range(1, TURNS + 1)]
    steps = {
        name: {"cues": [{"when": ["[^z]"], "says": f"turn {name}", "to": after}], "otherwise": ["?"]}
        for name, after in zip(names, [*names[1:], "end"], strict=True)
    }
    path = directory / "scenarios.json"
    path.write_text(json.dumps({"*": {"opening": "Hello.", "first": "1", "steps": steps}}))
    arguments = ["mcp_rollout.mcp_servers.user_simulator", "scripted", "--scenarios", str(path), "--http"]
    async with listening_program(lambda port: [sys.executable, "-m", *arguments, f"127.0.0.1:{port}"]) as port:
        yield port


async def insist(session: Session, role: Role, arguments: dict[str, Any]) -> Any:
    """Ask until there is an answer, as a harness may that numbers its requests."""
    for _ in range(200):
        try:
            return (await session.invoke(role, arguments, server="user")).structured
        except BROKEN:
            continue
    raise AssertionError(f"{role} was never answered")


async def converse(gateway: Gateway, number: int, *, twice: bool) -> list[str]:
    """The user's answers to what one agent says, each asked for twice at once where `twice`."""
    async with gateway.lease(trajectory=f"t{number}", task=None, seed=number) as session:
        await insist(session, Role.RESET, {"task": "any", "seed": number})
        heard: list[str] = []
        for seq, message in enumerate(COUNTED, 1):
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


async def crowd(relay: Relay, conversations: int) -> None:
    entry = {"url": f"{relay.url}/mcp", "required": True, "start_timeout_s": 60, "call_timeout_s": 300}
    config = GatewayConfig.model_validate({"servers": {"user": entry}, "max_sessions": conversations})
    heard: dict[int, list[str]] = {}
    async with started(config) as gateway, anyio.create_task_group() as tasks:

        async def one(number: int) -> None:
            try:
                heard[number] = await converse(gateway, number, twice=number % 4 == 0)
            except GatewayError as error:  # the release at the end may be dropped twice: nothing depends on it any more
                assert number in heard, error

        for number in range(conversations):
            tasks.start_soon(one, number)
    assert {number: said for number, said in heard.items() if said != COUNTED} == {}
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
    async with user_who_counts(tmp_path) as port, dropping(port, share=0.03, seed=1) as relay:
        await crowd(relay, conversations)
