"""Sessions under verl's own `tool_agent`: one per trajectory, bound to verl's object, checked with the lock."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from keeping import RELEASED

from mcp_rollout import Gateway, load_servers
from mcp_rollout.gateway.catalogue.tool_config import lock_entries, write_lock
from mcp_rollout.gateway.errors import LockMismatch, ServerUnavailable
from mcp_rollout.gateway.types import ToolDefinition
from mcp_rollout.rollout.environment.config import load_environment

pytestmark = [pytest.mark.anyio, pytest.mark.verl, pytest.mark.usefixtures("imported_verl")]

MINI = Path(__file__).parents[2] / "gateway" / "mini_server.py"


def trajectory(**task: Any) -> Any:
    """verl's object for one."""
    from verl.experimental.agent_loop.tool_agent_loop import AgentData

    return AgentData([], [], [], None, None, {}, "r", {"mcp": task})  # pyright: ignore[reportArgumentType]


async def call(tool: Any, arguments: dict[str, Any], data: Any) -> str:
    """As `ToolAgentLoop._call_tool` does it."""
    instance, _ = await tool.create()
    answer, _, _ = await tool.execute(instance, arguments, agent_data=data)
    await tool.release(instance)
    return answer.text


@asynccontextmanager
async def locked(directory: Path, servers: dict[str, Any], **changed: Any) -> AsyncIterator[dict[str, Any]]:
    """verl's tools by name, of a lock that was written while the servers ran, in a worker that starts them again."""
    from verl.tools.tool_registry import initialize_tools_from_config

    from mcp_rollout.rollout.verl.runtime import WORKER

    source, lock = directory / "servers.json", directory / "tools.yaml"
    source.write_text(json.dumps({"mcpServers": servers}))
    async with Gateway(load_servers(source)) as gateway:
        kept: dict[str, list[ToolDefinition]] = {
            server: [replace(tool, **changed) for tool in tools] for server, tools in gateway.catalogue.items()
        }
        write_lock(lock, lock_entries(kept, environment=None, source=str(source)))
    try:
        yield {tool.name: tool for tool in initialize_tools_from_config(str(lock))}
    finally:
        await WORKER.close()


async def test_state_survives_from_one_call_to_the_next_and_ends_with_verls_object(tmp_path: Path) -> None:
    async with locked(tmp_path, {"keeper": {"factory": "keeping:keeper"}}) as tools:
        RELEASED.clear()
        one, other = trajectory(task="shop", seed=7), trajectory()
        assert await call(tools["get"], {}, one) == "shop/7"
        await call(tools["put"], {"text": "of one"}, one)
        assert await call(tools["get"], {}, other) == "/0"
        assert await call(tools["get"], {}, one) == "of one"
        assert RELEASED == []
        del one
        with anyio.fail_after(10):
            while not RELEASED:
                await anyio.lowlevel.checkpoint()
        assert RELEASED == ["of one"]
        assert await call(tools["get"], {}, other) == "/0"
        del other
        with anyio.fail_after(10):
            while len(RELEASED) < 2:
                await anyio.lowlevel.checkpoint()


async def test_a_worker_in_which_a_server_of_the_lock_did_not_start_tries_again(tmp_path: Path) -> None:
    up = tmp_path / "up"
    up.touch()
    echo = ["-c", 'test -e "$0" && exec "$@"', str(up), sys.executable, "-I", "-S", str(MINI), "echo"]
    servers = {"world": {"command": "sh", "args": echo}, "unlocked": {"command": "false"}}
    async with locked(tmp_path, servers) as tools:
        up.unlink()
        unlucky = trajectory()
        with pytest.raises(ServerUnavailable, match="world"):
            await call(tools["echo"], {"text": "a"}, unlucky)
        up.touch()
        later = trajectory()
        assert await call(tools["echo"], {"text": "b"}, later) == "b"
        del unlucky, later


@pytest.mark.parametrize("changed", [{"description": "Another."}, {"read_only": False}])
async def test_a_worker_whose_servers_differ_from_the_lock_calls_nothing(
    tmp_path: Path, changed: dict[str, Any]
) -> None:
    entry = {"command": sys.executable, "args": ["-I", "-S", str(MINI), "echo"]}
    async with locked(tmp_path, {"world": entry}, **changed) as tools:
        with pytest.raises(LockMismatch, match="world/echo has changed"):
            await call(tools["echo"], {"text": "a"}, trajectory())


async def test_declared_call_settings_apply_to_verls_own_agent(tmp_path: Path) -> None:
    """Its tool calls of a turn begin at once, in written order (`ToolAgentLoop._handle_processing_tools_state`)."""
    from verl.tools.tool_registry import initialize_tools_from_config

    from mcp_rollout.rollout.verl.runtime import WORKER

    source, lock = tmp_path / "world.yaml", tmp_path / "tools.yaml"
    entry = {"command": sys.executable, "args": ["-I", "-S", str(MINI), "echo"]}
    calls = {"arguments": "as_sent", "order": "written"}
    source.write_text(json.dumps({"servers": {"world": entry}, "calls": calls}))
    async with Gateway(load_environment(source, ".")) as gateway:
        write_lock(lock, lock_entries(gateway.catalogue, environment="world", source=str(source)))
    try:
        (tool,) = initialize_tools_from_config(str(lock))
        assert await call(tool, {"text": [5], "more": None}, trajectory()) == "[5]"
    finally:
        await WORKER.close()
