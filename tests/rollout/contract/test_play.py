"""What is compared of two worlds: all that their tools say, but for what is a trajectory's own by nature."""

from __future__ import annotations

import pytest
from mcp.server.mcpserver import Context, MCPServer
from mcp_types import ToolAnnotations
from worlds import environment, opened

from mcp_rollout.rollout.contract.play import view
from mcp_rollout.rollout.environment.harness import ListedTask

pytestmark = pytest.mark.anyio


async def test_without_a_directory_the_word_none_stays_what_it_is() -> None:
    server = MCPServer("talker", log_level="ERROR")

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    async def say(ctx: Context) -> str:
        return f"Letters: None. I am {(ctx.request_context.meta or {})['mcp-rollout/trajectory']}."

    servers = {"talker": server}
    made = environment(servers)
    async with opened(made, servers) as gateway, gateway.lease(trajectory="e4f1", task=None, seed=0) as session:
        assert session.lease_dir is None
        seen = await view(made, session, ListedTask(task="x", seed=0))
    assert seen == {"talker: say": "Letters: None. I am ${trajectory}."}
