"""Rows begin with what the environment's servers have to say."""

from __future__ import annotations

from typing import Any

import pytest
from mcp.server.mcpserver import MCPServer
from worlds import environment, opened

from mcp_rollout import ConfigError
from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.environment.rows import environment_tasks

pytestmark = pytest.mark.anyio

PROMPTLESS, LONG = MCPServer("promptless"), MCPServer("long")
SERVERS = {"shop": MCPServer("shop", instructions="Sell."), "mute": MCPServer("mute")}


@SERVERS["shop"].resource("shop://prices")
def prices() -> str:
    return "Plum: 1."


@SERVERS["shop"].tool(meta={"mcp-rollout/role": "tasks"})
def tasks(split: str, limit: int) -> dict[str, Any]:
    """Tasks."""
    return {"tasks": [{"task": "sell", "seed": 3, "prompt": "A plum."}]}


def made(system: Any) -> Environment:
    return environment(SERVERS, system=system, tasks={"server": "shop"})


async def prompt(system: Any) -> list[tuple[str, str]]:
    env = made(system)
    async with opened(env, SERVERS) as gateway:
        (task,) = await environment_tasks(env, gateway, "train", None)
    return [(message["role"], message["content"]) for message in task.prompt]


RESOURCE = {"resource": {"server": "shop", "uri": "shop://prices"}}


@pytest.mark.parametrize(
    ("system", "text"),
    [
        ({"text": "Hello."}, "Hello."),
        ({"instructions_of": "shop"}, "Sell."),
        (RESOURCE, "Plum: 1."),
        (
            [{"text": "Hello."}, RESOURCE, {"instructions_of": "shop"}],
            "Hello.\n\nPlum: 1.\n\nSell.",
        ),
    ],
)
async def test_the_system_message_is_what_the_environment_puts_together(system: Any, text: str) -> None:
    assert await prompt(system) == [("system", text), ("user", "A plum.")]


@pytest.mark.parametrize(
    ("system", "said"),
    [
        ({"instructions_of": "mute"}, r"system.0: server 'mute' gives no instructions"),
        ([{"text": "x"}, {"resource": {"server": "shop", "uri": "shop://x"}}], r"system.1: .* refuses resource 'shop:"),
    ],
)
async def test_a_part_that_a_server_does_not_give_is_one_error_with_its_key(system: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        await prompt(system)


@pytest.mark.parametrize(
    ("system", "said"),
    [
        ({"text": "x", "instructions_of": "shop"}, "give one of"),
        ([{}], "give one of"),
        ([{"resource": {"server": "shp", "uri": "shop://x"}}], "system.0 names 'shp'"),
    ],
)
def test_a_wrong_system_section_is_refused(system: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        made(system)
