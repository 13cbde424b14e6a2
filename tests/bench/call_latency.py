"""What a call and a lease cost: `Session.call` beside the SDK's own client on the same server, in one run.

    python tests/bench/call_latency.py [--calls 400] [--servers FILE]

Prints one JSON object. Calls of both clients alternate, so that whatever else the machine does hits both alike.
With `--servers`, leases of that file's servers are timed too, reset included: cold (the gateway starts) and warm.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import structlog
from echo_server import create_server
from mcp import Client, StdioServerParameters

from gateway import Gateway, GatewayConfig, Role, load_servers

Call = Callable[[], Awaitable[Any]]
BLOCK = 10
TEXT = "x" * 100
SERVER = str(Path(__file__).with_name("echo_server.py"))


async def compare(bare: Call, ours: Call, calls: int) -> dict[str, float]:
    """Medians in milliseconds over `calls` calls of each, in alternating blocks."""
    samples: dict[str, list[float]] = {"sdk": [], "session": []}
    for call in (bare, ours):
        for _ in range(BLOCK):
            await call()
    for _ in range(calls // BLOCK):
        for name, call in (("sdk", bare), ("session", ours)):
            for _ in range(BLOCK):
                began = time.perf_counter()
                await call()
                samples[name].append(1e3 * (time.perf_counter() - began))
    sdk, session = (statistics.median(samples[name]) for name in ("sdk", "session"))
    return {"sdk_ms": round(sdk, 4), "session_ms": round(session, 4), "ratio_to_sdk": round(session / sdk, 3)}


async def measure(target: Any, entry: dict[str, Any], connect: Any, calls: int) -> dict[str, float]:
    config = GatewayConfig.model_validate({"servers": {"bench": {"required": True, **entry}}})
    arguments = {"text": TEXT}
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client(target))
        gateway = await stack.enter_async_context(Gateway(config, connect=connect))
        session = await stack.enter_async_context(gateway.lease(trajectory="t", task="", seed=1))
        meta: Any = {"mcp-rollout/trajectory": "t", "mcp-rollout/seed": 1}
        return await compare(
            lambda: client.call_tool("echo", arguments, meta=meta), lambda: session.call("echo", arguments), calls
        )


@asynccontextmanager
async def over_http() -> AsyncIterator[str]:
    """The server in a process of its own, so that neither client shares its loop."""
    async with await anyio.open_process([sys.executable, SERVER, "http"], stderr=None) as process:
        assert process.stdout is not None
        port = int(await process.stdout.receive())
        yield f"http://127.0.0.1:{port}/mcp"
        process.terminate()


async def first_task(gateway: Gateway) -> str:
    """A task that the servers can be reset to."""
    async with gateway.lease(trajectory="bench", task=None, seed=0) as session:
        for server in gateway.catalogue:
            if session.has(Role.TASKS, server):
                found = await session.invoke(Role.TASKS, {"split": "train", "limit": 1}, server=server)
                return found.structured["tasks"][0]["task"] if found.structured else ""
    return ""


async def leases(file: Path, count: int = 50) -> dict[str, float]:
    config = load_servers(file)
    began = time.perf_counter()
    async with Gateway(config) as gateway:
        started = time.perf_counter() - began
        task = await first_task(gateway)
        waits: list[float] = []
        for number in range(count):
            began = time.perf_counter()
            async with gateway.lease(trajectory=f"bench-{number}", task=task, seed=number):
                waits.append(time.perf_counter() - began)
    return {
        "cold_s": round(started + waits[0], 3),
        "gateway_start_s": round(started, 3),
        "warm_ms_p50": round(1e3 * statistics.median(waits[1:]), 3),
        "warm_ms_max": round(1e3 * max(waits[1:]), 3),
    }


async def main(calls: int, servers: Path | None) -> None:
    own: Any = create_server()
    argv = [SERVER, "stdio"]
    report: dict[str, Any] = {}
    report["in_process"] = await measure(own, {"factory": "unused:unused"}, lambda _, __: own, calls)
    report["stdio"] = await measure(
        StdioServerParameters(command=sys.executable, args=argv), {"command": sys.executable, "args": argv}, None, calls
    )
    async with over_http() as url:
        report["http"] = await measure(url, {"url": url}, None, calls)
    report = {"calls": calls, "transports": report}
    if servers is not None:
        report["leases"] = await leases(servers)
    print(json.dumps(report, indent=2))  # noqa: T201


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=400)
    parser.add_argument("--servers", type=Path)
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    anyio.run(main, options.calls, options.servers)
