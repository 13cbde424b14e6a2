"""A server of another project over HTTP: node's streamable HTTP, and the older event stream."""

import os
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from third_party import npm

from mcp_rollout import Gateway, GatewayConfig

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def listening(transport: str) -> AsyncIterator[int]:
    """The `everything` server in a process of its own, and its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    entry = npm("server-everything", transport)
    env = {**os.environ, "PORT": str(port)}
    argv = [entry["command"], *entry["args"]]
    async with await anyio.open_process(argv, env=env, stdout=subprocess.DEVNULL) as process:
        assert process.stderr is not None
        with anyio.fail_after(20):
            said = b""
            while str(port).encode() not in said:
                said += await process.stderr.receive()
        try:
            yield port
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("transport", "entry"),
    [
        ("streamableHttp", {"url": "http://127.0.0.1:{}/mcp"}),
        ("sse", {"url": "http://127.0.0.1:{}/sse", "type": "sse"}),
    ],
)
async def test_the_node_server_works_over_http_for_several_trajectories_at_once(
    transport: str, entry: dict[str, Any]
) -> None:
    async with listening(transport) as port:
        world = {**entry, "url": entry["url"].format(port), "required": True, "scope": "session"}
        async with (
            Gateway(GatewayConfig.model_validate({"servers": {"world": world}})) as gateway,
            gateway.lease(trajectory="a", task=None, seed=1) as one,
            gateway.lease(trajectory="b", task=None, seed=2) as two,
        ):
            sums: dict[int, str] = {}

            async def add(session: Any, number: int) -> None:
                sums[number] = (await session.call("get-sum", {"a": number, "b": 1})).text

            async with anyio.create_task_group() as tasks:
                for number in range(8):
                    tasks.start_soon(add, (one, two)[number % 2], number)
            for number, text in sums.items():
                assert text == f"The sum of {number} and 1 is {number + 1}."
            assert (await one.call("get-tiny-image", {})).content[1].data.startswith(b"\x89PNG")
