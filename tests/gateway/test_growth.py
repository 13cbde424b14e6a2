"""What grows with the number of tools, sessions and processes is counted: lines that run, and looks at processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp.server.mcpserver import MCPServer

import gateway
from gateway import Gateway, GatewayConfig
from gateway.leases import sweeper

pytestmark = pytest.mark.anyio
OURS = str(Path(gateway.__file__).parent)


@contextmanager
def counted() -> Iterator[list[int]]:
    """Lines of the gateway's own code that run within the block; each round of a loop counts."""
    lines = [0]

    def trace(frame: Any, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        lines[0] += event == "line"
        return trace

    sys.settrace(trace)
    try:
        yield lines
    finally:
        sys.settrace(None)


def server_with(tools: int) -> MCPServer:
    server = MCPServer("many", log_level="ERROR")
    for number in range(tools):
        server.add_tool(lambda n: n, name=f"tool_{number}", description="Says a number.")
    return server


async def work(tools: int, sessions: int = 1) -> tuple[float, float, float]:
    """Lines for a start, and on average for a lease and for a call of a tool."""
    config = GatewayConfig.model_validate(
        {"servers": {"many": {"factory": "unused:unused", "required": True}}, "max_sessions": sessions + 1}
    )
    server = server_with(tools)
    with counted() as start:
        opened = Gateway(config, connect=lambda _, __: server)
        await opened.__aenter__()
    held = [opened.lease(trajectory=f"t{number}", task=None, seed=number) for number in range(sessions)]
    async with opened.lease(trajectory="first", task=None, seed=0) as first:
        await first.call("tool_0", {"n": 1})  # compiles
        with counted() as lease:
            leased = [await each.__aenter__() for each in held]
        with counted() as call:
            for session in leased:
                await session.call("tool_0", {"n": 1})
        for each in reversed(held):
            await each.__aexit__(None, None, None)
    await opened.__aexit__(None, None, None)
    return start[0], lease[0] / sessions, call[0] / sessions


async def test_with_a_thousand_tools_a_start_and_a_lease_grow_with_their_number_and_a_call_does_not() -> None:
    few, many = await work(100), await work(1000)
    assert min(*few, *many) > 20
    assert many[0] < 11 * few[0]
    assert many[1] < 11 * few[1]
    assert many[2] <= few[2] + 5


async def test_a_lease_and_a_call_cost_the_same_however_many_sessions_there_are() -> None:
    few, many = await work(2, 16), await work(2, 1024)
    assert many[1] <= 1.2 * few[1] + 5
    assert many[2] <= 1.2 * few[2] + 5


COUNTING = f"""
import sys
sys.path.insert(0, {str(Path(sweeper.__file__).parent)!r})
import sweeper
looks, kill_if_marked, end = 0, sweeper.kill_if_marked, sweeper.end
def counting(pid, is_ended):
    global looks
    looks += 1
    return kill_if_marked(pid, is_ended)
sweeper.kill_if_marked = counting
sweeper.main()
print(looks)
"""


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="leftovers are found through /proc")
async def test_a_thousand_connections_that_end_together_are_swept_with_a_few_looks_at_each_process() -> None:
    argv = [sys.executable, "-I", "-S", "-c", COUNTING, str(os.getpid()), "no-such-token"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:  # noqa: ASYNC220
        said, _ = process.communicate(b"".join(b"no-such-token-%d\n" % number for number in range(1000)), timeout=60)
    processes = sum(name.isdigit() for name in os.listdir("/proc"))
    assert 0 < int(said) <= 10 * (processes + 100)
