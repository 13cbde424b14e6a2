"""A client of `serve` has the trajectory and the seed of its lease, whatever it writes under `mcp-rollout/`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import mcp_types as mcp
import pytest
from mcp import Client
from mcp.server.mcpserver import Context, MCPServer
from served import OTHER_TOKEN, TOKEN, RawClient, client, served
from serving import serving

from mcp_rollout import GatewayConfig
from mcp_rollout.mcp_servers.kit.state import TrajectoryState

pytestmark = pytest.mark.anyio
MODERN = "2026-07-28"
ERAS = ["legacy", MODERN]
SERVER = str(Path(__file__).parents[2] / "support" / "one_era_server.py")
INVENTED = {
    f"mcp-rollout/{name}": "invented" for name in ("trajectory", "seed", "call", "server", "reward", "role", "anything")
}


def text(result: Any) -> str:
    return result.content[0].text


def cells() -> MCPServer:
    """One cell for each trajectory, with room for three."""
    server, states = (
        MCPServer("cells", log_level="CRITICAL"),
        TrajectoryState(lambda seed: [str(seed)], max_trajectories=3),
    )

    @server.tool()
    async def put(text: str, ctx: Context) -> str:
        states.of(ctx)[0] = text
        return "stored"

    @server.tool()
    async def get(ctx: Context) -> str:
        return states.of(ctx)[0]

    del put, get  # registered
    return server


@pytest.mark.parametrize("mode", ERAS)
async def test_a_client_that_names_anothers_trajectory_does_not_reach_its_world(mode: str) -> None:
    async with serving(cells(), "http") as entry:
        made = GatewayConfig.model_validate({"servers": {"cells": entry}})
        async with served(made, tokens=(TOKEN, OTHER_TOKEN), seed=5) as running:
            own = RawClient(running.url, TOKEN)
            lease = await own.open("victim")
            await own.ask("tools/call", {"name": "put", "arguments": {"text": "plum"}}, lease=lease, call="1")
            async with client(running.url, OTHER_TOKEN, mode) as thief:
                for number in range(4):  # more than the server has room for
                    for trajectory in ("victim", f"invented {number}"):
                        named: Any = {"mcp-rollout/trajectory": trajectory, "mcp-rollout/seed": 7}
                        assert text(await thief.call_tool("get", {}, meta=named)) in ("5", "pear")
                        await thief.call_tool("put", {"text": "pear"}, meta=named)
            found = await own.ask("tools/call", {"name": "get", "arguments": {}}, lease=lease, call="2")
            assert found["result"]["content"][0]["text"] == "plum"


@pytest.mark.parametrize(("era", "mode"), [("old", "legacy"), ("new", MODERN)])
async def test_nothing_that_a_client_writes_under_our_prefix_goes_upstream(tmp_path: Path, era: str, mode: str) -> None:
    async def elicited(context: Any, params: Any) -> mcp.ElicitResult:
        return mcp.ElicitResult(action="accept", content={"name": "Ada"}, _meta={**INVENTED})

    seen = tmp_path / "seen"
    entry = {"command": sys.executable, "args": ["-I", "-S", SERVER, era], "env": {"SEEN": str(seen)}, "required": True}
    async with served(GatewayConfig.model_validate({"servers": {"asker": entry}}), seed=5) as running:
        async with Client(running.url, mode=mode, cache=None, elicitation_callback=elicited) as user:
            invented: Any = {**INVENTED, "mine": "kept"}
            assert text(await user.call_tool("ask_twice", {}, meta=invented)) == "Ada Ada"
            assert (await user.get_prompt("greet", meta=invented)).messages[0].content
            assert (await user.read_resource("test://names", meta=invented)).contents
            for method in (user.list_prompts, user.list_resources):
                await method(meta=invented)
    assert "invented" not in seen.read_text() and seen.read_text().count('"kept"') >= 5
    metas = [json.loads(line).get("params", {}).get("_meta", {}) for line in seen.read_text().splitlines()]
    stamped = [meta for meta in metas if "mine" in meta]
    assert {meta["mcp-rollout/seed"] for meta in stamped} == {5}
    assert all(meta["mcp-rollout/trajectory"].startswith("client-") for meta in stamped)


@pytest.mark.parametrize("mode", ERAS)
async def test_a_clients_token_does_not_reach_the_servers(mode: str) -> None:
    seen: list[str] = []
    server = MCPServer("headers", log_level="CRITICAL")

    @server.tool()
    async def look(ctx: Context) -> str:
        seen.append(json.dumps(dict(ctx.headers or {})))
        return "seen"

    del look  # registered
    async with serving(server, "http") as entry:
        own = {**entry, "headers": {"authorization": "Bearer of the entry"}}
        async with served(GatewayConfig.model_validate({"servers": {"headers": own}}), tokens=(TOKEN,)) as running:
            async with client(running.url, TOKEN, mode) as user:
                assert text(await user.call_tool("look", {})) == "seen"
    assert "Bearer of the entry" in seen[0] and TOKEN not in seen[0]
