"""What a call costs through the gateway, beside the SDK's own client and beside connecting for each call.

Within one run, with both sides alternating, so that whatever else the machine does hits both alike: trust the ratios.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio
from mcp import Client, StdioServerParameters

from gateway.config.models import GatewayConfig
from gateway.gateway import Gateway
from gateway.types import SEED_META, TRAJECTORY_META
from rollout.cli.bench_server import create_server

Call = Callable[[], Awaitable[Any]]

WARM_UP = 20
CONCURRENT = 16
"""Callers at a time where calls per second are counted."""
_TEXT = "x" * 100
_START_S = 30.0


@dataclass(frozen=True, kw_only=True, slots=True)
class CallCost:
    """One transport. Milliseconds are medians of calls one after the other."""

    sdk_ms: float
    session_ms: float
    calls_per_s: float
    """By `CONCURRENT` callers at a time, over the gateway's one connection."""
    connecting_calls_per_s: float
    """The same callers, each call with a client of the SDK's that connects for it and closes after it."""

    @property
    def ratio_to_sdk(self) -> float:
        return self.session_ms / self.sdk_ms

    @property
    def ratio_to_connecting(self) -> float:
        return self.calls_per_s / self.connecting_calls_per_s


async def measure_calls(calls: int, connects: int) -> dict[str, CallCost]:
    """By transport, the costs of a small tool's call.

    Args:
        calls: Of each side, one after the other; and as many again at the same time.
        connects: Calls for which a client connects.
    """
    own = create_server()
    argv = ["-m", "rollout.cli.bench_server", "stdio"]
    stdio = StdioServerParameters(command=sys.executable, args=argv)
    costs: dict[str, CallCost] = {}
    costs["in_process"] = await _measure(own, {"factory": "unused:unused"}, calls, connects, connect=lambda _, __: own)
    costs["stdio"] = await _measure(stdio, {"command": sys.executable, "args": argv}, calls, connects)
    async with _over_http() as url:
        costs["http"] = await _measure(url, {"url": url}, calls, connects)
    return costs


async def _measure(
    target: Any, entry: dict[str, Any], calls: int, connects: int, *, connect: Callable[[Any, str], Any] | None = None
) -> CallCost:
    config = GatewayConfig.model_validate({"servers": {"bench": {"required": True, **entry}}})
    arguments = {"text": _TEXT}
    meta: Any = {TRAJECTORY_META: "t", SEED_META: 1}

    async def with_a_client_of_its_own() -> None:
        async with Client(target) as client:
            await client.call_tool("echo", arguments, meta=meta)

    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client(target))
        gateway = await stack.enter_async_context(Gateway(config, connect=connect))
        session = await stack.enter_async_context(gateway.lease(trajectory="t", task=None, seed=1))

        async def by_sdk() -> None:
            await client.call_tool("echo", arguments, meta=meta)

        async def by_session() -> None:
            await session.call("echo", arguments)

        sdk_ms, session_ms = await _alternating(by_sdk, by_session, calls)
        calls_per_s = await _throughput(by_session, calls)
        return CallCost(
            sdk_ms=sdk_ms,
            session_ms=session_ms,
            calls_per_s=calls_per_s,
            connecting_calls_per_s=await _throughput(with_a_client_of_its_own, connects),
        )


async def _alternating(one: Call, other: Call, calls: int) -> tuple[float, float]:
    """Medians in milliseconds over `calls` calls of each, in pairs of which either side begins every second one."""
    pairs: list[tuple[Call, list[float]]] = [(one, []), (other, [])]
    for number in range(WARM_UP + calls):
        for call, samples in pairs if number % 2 else reversed(pairs):
            began = time.perf_counter()
            await call()
            if number >= WARM_UP:
                samples.append(1e3 * (time.perf_counter() - began))
    return statistics.median(pairs[0][1]), statistics.median(pairs[1][1])


async def _throughput(call: Call, calls: int) -> float:
    """Calls per second, `CONCURRENT` at a time."""
    left = iter(range(calls))

    async def caller() -> None:
        for _ in left:
            await call()

    began = time.perf_counter()
    async with anyio.create_task_group() as callers:
        for _ in range(CONCURRENT):
            callers.start_soon(caller)
    return calls / (time.perf_counter() - began)


@asynccontextmanager
async def _over_http() -> AsyncGenerator[str]:
    """The server in a process of its own, so that neither client shares its loop."""
    argv = [sys.executable, "-m", "rollout.cli.bench_server", "http"]
    async with await anyio.open_process(argv, stderr=None) as process:
        assert process.stdout is not None
        with anyio.fail_after(_START_S):
            port = int(await process.stdout.receive())
        try:
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            process.terminate()
