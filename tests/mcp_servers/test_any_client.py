"""Servers of the kit are ordinary MCP programs: the SDK's own client uses a generated one, in either protocol era."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from mcp import Client, StdioServerParameters
from mcp_types import TextContent
from programs import listening_program

from mcp_rollout.rollout.cli.new_server import new_server

pytestmark = pytest.mark.anyio

ERAS = {"legacy": "2025-11-25", "2026-07-28": "2026-07-28"}
"""The client's `mode`, and the protocol version that it then negotiates."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a server that `new-server` wrote."""
    out = tmp_path_factory.mktemp("out")
    assert new_server("tea_shop", out, as_json=True) == 0
    return out / "tea_shop" / "server.py"


@asynccontextmanager
async def over_http(server: Path) -> AsyncIterator[str]:
    async with listening_program(lambda port: [sys.executable, str(server), "--http", f"127.0.0.1:{port}"]) as port:
        yield f"http://127.0.0.1:{port}/mcp"


async def use(client: Client) -> None:
    """A whole trajectory without any of our metadata, as a client does that never heard of us."""
    listed = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert {"look", "turn", "reset", "score"} <= listed.keys()
    assert listed["turn"].input_schema["properties"]["steps"]["maximum"] == 99

    async def call(name: str, **arguments: Any) -> Any:
        result = await client.call_tool(name, arguments)
        assert not result.is_error, result.content
        return result.structured_content

    refused = await client.call_tool("look", {})
    assert refused.is_error and isinstance(refused.content[0], TextContent) and "reset" in refused.content[0].text
    (task,) = (await call("tasks", split="test", limit=1))["tasks"]
    await call("reset", task=task["task"], seed=task["seed"])
    messages: list[dict[str, Any]] = [{"role": "user", "content": task["prompt"]}]
    for turn in (await call("expert", task=task["task"], seed=task["seed"]))["turns"]:
        for made in turn.get("calls", []):
            await call(made["name"], **made["arguments"])
        messages.append({"role": "assistant", "content": turn.get("content", "")})
    assert (await call("score", messages=messages))["score"] == 1.0
    await call("release")


@pytest.mark.parametrize("mode", ERAS)
async def test_the_sdks_client_uses_a_generated_server_over_stdio(server: Path, mode: str) -> None:
    program = StdioServerParameters(command=sys.executable, args=[str(server)], env=dict(os.environ))
    with anyio.fail_after(60):
        async with Client(program, mode=mode) as client:
            assert client.protocol_version == ERAS[mode]
            await use(client)


async def test_the_sdks_client_uses_a_generated_server_over_http_in_both_eras(server: Path) -> None:
    async with over_http(server) as url:
        for mode, version in ERAS.items():
            with anyio.fail_after(60):
                async with Client(url, mode=mode) as client:
                    assert client.protocol_version == version
                    await use(client)
