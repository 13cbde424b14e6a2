"""What `mcp-rollout serve` costs: CPU time of a call through it, and calls per second beside FastMCP's proxy.

    python -m lab.benchmarks.serve_cost [--calls 400] [--rounds 5] [--fastmcp .venv-mcp2/bin/python]

The server is the SDK's bare HTTP server, with a tool that does as little as a tool can. CPU time: a gateway that calls
it directly, and one whose worlds are behind `serve`, in turns; all processes together. Calls per second: the SDK's own
client through `serve`, through FastMCP's proxy (`make mcp2`), and directly, in turns. Prints one JSON object.
"""

import argparse
import json
import logging
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import structlog
from mcp import Client

from lab.benchmarks.costs import cpu_s
from lab.benchmarks.echo_server import create_server
from lab.benchmarks.server_programs import listening
from mcp_rollout.gateway.config.models import GatewayConfig
from mcp_rollout.gateway.gateway import Gateway
from mcp_rollout.gateway.remote.hosts import HostConfig, HostList

CONCURRENT = 16
TEXT = "x" * 100
PROXY = Path(__file__).with_name("fastmcp_proxy.py")
Call = Callable[[], Awaitable[Any]]

SERVER = f"""
import sys, uvicorn
from {create_server.__module__} import create_server
uvicorn.run(create_server().streamable_http_app(), port=int(sys.argv[1]), log_level="critical")
"""


@contextmanager
def bare_server() -> Iterator[tuple[int, str]]:
    """The process of the SDK's server, and its address."""
    with listening([sys.executable, "-c", SERVER]) as (process, port):
        yield process.pid, f"http://127.0.0.1:{port}/mcp"


@contextmanager
def served(config: dict[str, Any]) -> Iterator[tuple[int, str]]:
    """The process of `mcp-rollout serve`, and its address."""
    with tempfile.TemporaryDirectory() as home:
        file = Path(home, "servers.yaml")
        file.write_text(json.dumps(config))
        argv = [sys.executable, "-m", "mcp_rollout", "serve", str(file), "--no-token", "--port"]
        with listening(argv) as (process, port):
            yield process.pid, f"http://127.0.0.1:{port}/mcp"


async def at_once(call: Call, number: int) -> None:
    left = iter(range(number))

    async def caller() -> None:
        for _ in left:
            await call()

    async with anyio.create_task_group() as tasks:
        for _ in range(CONCURRENT):
            tasks.start_soon(caller)


async def cpu_of(call: Call, number: int, processes: list[int]) -> list[float]:
    """CPU time of this process and of each other, in ms a call."""
    before, own = [cpu_s(each) for each in processes], time.process_time()
    await at_once(call, number)
    spent = [time.process_time() - own, *(cpu_s(each) - then for each, then in zip(processes, before, strict=True))]
    return [1e3 * each / number for each in spent]


async def rate_of(call: Call, number: int) -> float:
    began = time.perf_counter()
    await at_once(call, number)
    return number / (time.perf_counter() - began)


@asynccontextmanager
async def calling(gateway: Gateway) -> AsyncIterator[Call]:
    async with gateway, gateway.lease(trajectory="t", task=None, seed=1) as session:

        async def call() -> None:
            assert (await session.call("echo", {"text": TEXT})).text == TEXT

        await at_once(call, 50)
        yield call


@asynccontextmanager
async def asking(url: str) -> AsyncIterator[Call]:
    """Calls of the SDK's client, in one session."""
    async with Client(url, mode="legacy", cache=None) as client:

        async def call() -> None:
            (content,) = (await client.call_tool("echo", {"text": TEXT})).content
            assert content.type == "text" and content.text == TEXT

        await at_once(call, 8)
        yield call


async def measure(calls: int, rounds: int, fastmcp: str | None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with bare_server() as (server, url):
        config = {"mcpServers": {"bench": {"url": url, "required": True}}}
        made = GatewayConfig.model_validate({"servers": config["mcpServers"]})
        with served(config) as (serve, there):
            async with (
                calling(Gateway(made)) as direct,
                calling(Gateway(made, hosts=HostList([HostConfig(url=there)]))) as through,
            ):
                sides = [
                    (await cpu_of(direct, calls, [server]), await cpu_of(through, calls, [server, serve]))
                    for _ in range(rounds)
                ]
            found["direct_cpu_ms"] = round(statistics.median(sum(direct) for direct, _ in sides), 3)
            found["serve_cpu_ms"] = round(statistics.median(sum(through) for _, through in sides), 3)
            found["of_which_serve_ms"] = [round(through[-1], 3) for _, through in sides]
            found["cpu_ratios"] = [round(sum(through) / sum(direct), 3) for direct, through in sides]
            if fastmcp is not None:
                with listening([fastmcp, str(PROXY), url]) as (_, port):
                    proxy = f"http://127.0.0.1:{port}/mcp"
                    async with asking(there) as ours, asking(proxy) as theirs, asking(url) as bare:
                        rates = [
                            (
                                await rate_of(ours, calls),
                                await rate_of(theirs, max(calls // 8, 16)),
                                await rate_of(bare, calls),
                            )
                            for _ in range(rounds)
                        ]
                for name, side in zip(("serve", "fastmcp", "bare"), zip(*rates, strict=True), strict=True):
                    found[f"{name}_calls_per_s"] = round(statistics.median(side), 1)
                found["rate_ratios"] = [round(ours / theirs, 1) for ours, theirs, _ in rates]
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--fastmcp", help="FastMCP's interpreter; without it, calls per second are not compared")
    given = parser.parse_args()
    if given.fastmcp is not None and shutil.which(given.fastmcp) is None:
        parser.error(f"{given.fastmcp} is missing; `make mcp2` sets it up")
    logging.disable(logging.WARNING)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    print(json.dumps(anyio.run(measure, given.calls, given.rounds, given.fastmcp)))
