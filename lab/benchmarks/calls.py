"""`benchmarks call`: a call through the gateway beside the SDK's own client, and beside connecting for each call.

Both sides alternate in one run, so that other load of the machine affects both alike.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio
from mcp import Client, StdioServerParameters

from lab.benchmarks.echo_server import STDIO_ARGUMENTS, create_server, http_server
from lab.benchmarks.floor import Ask, over_http, over_stdio
from mcp_rollout.gateway.config.models import GatewayConfig
from mcp_rollout.gateway.gateway import Gateway
from mcp_rollout.gateway.types import SEED_META, TRAJECTORY_META
from mcp_rollout.mcp_servers.kit import InProcess
from mcp_rollout.rollout.process import tune_collector

Call = Callable[[], Awaitable[Any]]
Floor = AbstractAsyncContextManager[Ask]

WARM_UP = 20
CALLERS, TYPICAL = (1, 16, 64, 256), 16
"""Calls in flight where CPU time and calls per second are measured."""
TURNS, LEAST_TURNS = 10, 3
"""Of each side, where CPU time is measured."""
_TEXT = "x" * 100


@dataclass(frozen=True, kw_only=True, slots=True)
class CallerCost:
    """The cost with a number of calls in flight: medians over the turns of each side."""

    sdk_cpu_ms: float
    """CPU time of this process per call. In process it is the server's as well."""
    session_cpu_ms: float
    sdk_calls_per_s: float
    calls_per_s: float
    """Over the gateway's one connection."""

    @property
    def cpu_ratio_to_sdk(self) -> float:
        return self.session_cpu_ms / self.sdk_cpu_ms


@dataclass(frozen=True, kw_only=True, slots=True)
class CallCost:
    """The cost on one transport, in milliseconds a call; medians."""

    sdk_ms: float
    """Of sequential calls, as `session_ms`."""
    session_ms: float
    by_callers: dict[int, CallerCost]
    """By the number of calls in flight."""
    floor_cpu_ms: float | None
    """As `CallerCost.sdk_cpu_ms`, of a client that writes and reads bytes only, with `TYPICAL` calls in flight."""
    connecting_calls_per_s: float
    """The same, where each call opens and closes a client of the SDK."""

    @property
    def ratio_to_sdk(self) -> float:
        return self.session_ms / self.sdk_ms

    @property
    def typical(self) -> CallerCost:
        return self.by_callers[TYPICAL]

    @property
    def ratio_to_connecting(self) -> float:
        return self.typical.calls_per_s / self.connecting_calls_per_s


async def measure_calls(calls: int, connects: int, callers: Sequence[int] = CALLERS) -> dict[str, CallCost]:
    """Measure calls of a small tool; returns the costs by transport.

    Args:
        calls: Sequential calls of each side, and as many concurrent ones.
        connects: Calls for which a client connects.
        callers: Numbers of calls in flight; `TYPICAL` is added.
    """
    own, lines = create_server(), InProcess(create_server())
    # As in a worker of a training: a full collection would fall into some of the turns, and into others not.
    tune_collector()
    stdio = StdioServerParameters(command=sys.executable, args=STDIO_ARGUMENTS)
    entry = {"command": sys.executable, "args": STDIO_ARGUMENTS}
    costs: dict[str, CallCost] = {}
    measure = partial(_measure, calls=calls, connects=connects, callers=sorted({*callers, TYPICAL}))
    # The entry makes the gateway treat it as a server in process; `connect` gives the object instead of its factory's.
    here = {"factory": "unused:unused"}
    # The SDK's client and server against the gateway and the kit's way to serve; then the SDK's server on both sides.
    costs["in_process"] = await measure(own, here, connect=lambda _, __: lines)
    costs["in_process_sdk"] = await measure(own, here, connect=lambda _, __: own)
    costs["stdio"] = await measure(stdio, entry, floor=_stdio_floor())
    async with http_server() as url:
        floor = over_http(int(url.split(":")[2].partition("/")[0]))
        costs["http"] = await measure(url, {"url": url}, floor=floor)
    return costs


@asynccontextmanager
async def _stdio_floor() -> AsyncGenerator[Ask]:
    async with over_stdio([sys.executable, *STDIO_ARGUMENTS]) as (_, ask):
        yield ask


async def _measure(
    target: Any,
    entry: dict[str, Any],
    *,
    calls: int,
    connects: int,
    callers: Sequence[int],
    connect: Callable[[Any, str], Any] | None = None,
    floor: Floor | None = None,
) -> CallCost:
    config = GatewayConfig.model_validate({"servers": {"bench": {"required": True, **entry}}})
    arguments = {"text": _TEXT}
    # What a session sends with each call, so that both sides send the same bytes.
    meta: Any = {TRAJECTORY_META: "t", SEED_META: 1}

    async def connecting() -> None:
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
        by_callers = {each: await _in_turns(by_sdk, by_session, calls, each) for each in callers}
        return CallCost(
            sdk_ms=sdk_ms,
            session_ms=session_ms,
            by_callers=by_callers,
            floor_cpu_ms=None if floor is None else await _floor(floor, arguments, calls),
            connecting_calls_per_s=await _throughput(connecting, connects),
        )


async def _alternating(one: Call, other: Call, calls: int) -> tuple[float, float]:
    """Medians in milliseconds over `calls` calls of each, in pairs that begin with either side in turn."""
    pairs: list[tuple[Call, list[float]]] = [(one, []), (other, [])]
    for number in range(WARM_UP + calls):
        for call, samples in pairs if number % 2 else reversed(pairs):
            began = time.perf_counter()
            await call()
            if number >= WARM_UP:
                samples.append(1e3 * (time.perf_counter() - began))
    return statistics.median(pairs[0][1]), statistics.median(pairs[1][1])


async def _in_turns(one: Call, other: Call, calls: int, callers: int) -> CallerCost:
    """Turns of the SDK's side and of ours, each of at least one call of each caller."""
    cpu: tuple[list[float], list[float]] = [], []
    rate: tuple[list[float], list[float]] = [], []
    turns = max(LEAST_TURNS, min(TURNS, calls // callers))
    each = max(callers, calls // turns)
    sides = list(enumerate((one, other)))
    for turn in range(turns):
        for side, call in sides if turn % 2 else reversed(sides):
            began, spent = time.perf_counter(), time.process_time()
            await _concurrently(call, each, callers)
            cpu[side].append(1e3 * (time.process_time() - spent) / each)
            rate[side].append(each / (time.perf_counter() - began))
    return CallerCost(
        sdk_cpu_ms=statistics.median(cpu[0]),
        session_cpu_ms=statistics.median(cpu[1]),
        sdk_calls_per_s=statistics.median(rate[0]),
        calls_per_s=statistics.median(rate[1]),
    )


async def _floor(opened: Floor, arguments: dict[str, Any], calls: int) -> float:
    async with opened as ask:

        async def call() -> None:
            await ask("tools/call", {"name": "echo", "arguments": arguments})

        await ask("server/discover", {})
        await _concurrently(call, WARM_UP, TYPICAL)
        spent = time.process_time()
        await _concurrently(call, calls, TYPICAL)
        return 1e3 * (time.process_time() - spent) / calls


async def _throughput(call: Call, calls: int) -> float:
    """Calls per second with `TYPICAL` calls in flight."""
    began = time.perf_counter()
    await _concurrently(call, calls, TYPICAL)
    return calls / (time.perf_counter() - began)


async def _concurrently(call: Call, calls: int, callers: int) -> None:
    left = iter(range(calls))

    async def caller() -> None:
        for _ in left:
            await call()

    async with anyio.create_task_group() as tasks:
        for _ in range(callers):
            tasks.start_soon(caller)
