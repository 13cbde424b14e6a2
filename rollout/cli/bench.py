"""`bench`: measure calls and leases on this machine.

A call through the gateway is measured beside the SDK's own client, and beside connecting for each call, in one run with
both sides alternating, so that other load of the machine affects both alike. The ratios are what can be relied on.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Annotated, Any

import anyio
import typer
from mcp import Client, StdioServerParameters
from rich.console import Console
from rich.table import Table

from gateway.config.models import GatewayConfig
from gateway.gateway import Gateway
from gateway.types import SEED_META, TRAJECTORY_META, Role
from rollout.cli.bench_server import STDIO_ARGUMENTS, create_server, http_server
from rollout.cli.bench_sessions import bench_sessions
from rollout.cli.options import AsJson, EnvironmentsDir, File, load_target, print_json
from rollout.environment.harness import list_tasks

Call = Callable[[], Awaitable[Any]]

WARM_UP = 20
CONCURRENT = 16
"""Calls in flight where calls per second and CPU time are measured."""
TURNS = 10
"""Of each side, where CPU time is measured."""
_TEXT = "x" * 100

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Measure what the gateway costs on this machine.")


@app.command("call")
def bench_call(
    calls: Annotated[int, typer.Option(min=10, help="Calls per transport, of each side.")] = 400,
    connects: Annotated[int, typer.Option(min=1, help="Calls with their own connection, per transport.")] = 16,
    as_json: AsJson = False,
) -> int:
    """Compare a call through the gateway with the SDK's own client, and with connecting for each call."""
    costs = anyio.run(measure_calls, calls, connects)
    if as_json:

        def by_transport(field: str, digits: int) -> dict[str, float]:
            return {transport: round(getattr(cost, field), digits) for transport, cost in costs.items()}

        digits = {"ratio_to_sdk": 3, "sdk_ms": 4, "session_ms": 4, "calls_per_s": 1, "connecting_calls_per_s": 2}
        digits |= {"cpu_ratio_to_sdk": 3, "sdk_cpu_ms": 4, "session_cpu_ms": 4, "ratio_to_connecting": 1}
        fields = {field: by_transport(field, places) for field, places in digits.items()}
        print_json({"calls": calls, "connects": connects, **fields})
        return 0
    table = Table("transport", "SDK, ms", "gateway, ms", "ratio", "SDK, CPU ms", "gateway, CPU ms", "ratio")
    for column in ("calls/s", "connecting, calls/s", "ratio"):
        table.add_column(column)
    for transport, cost in costs.items():
        table.add_row(
            transport,
            f"{cost.sdk_ms:.2f}",
            f"{cost.session_ms:.2f}",
            f"{cost.ratio_to_sdk:.2f}",
            f"{cost.sdk_cpu_ms:.3f}",
            f"{cost.session_cpu_ms:.3f}",
            f"{cost.cpu_ratio_to_sdk:.3f}",
            f"{cost.calls_per_s:.0f}",
            f"{cost.connecting_calls_per_s:.1f}",
            f"{cost.ratio_to_connecting:.0f}",
        )
    Console().print(table)
    return 0


@app.command("lease")
def bench_lease(
    file: File,
    leases: Annotated[int, typer.Option("-n", min=2, help="How many leases.")] = 50,
    as_json: AsJson = False,
    environments_dir: EnvironmentsDir = None,
) -> int:
    """Measure a lease of these servers, reset included: the first, and those after it."""
    costs = anyio.run(measure_leases, load_target(file, environments_dir).config, leases)
    if as_json:
        print_json(costs)
    else:
        for name, value in costs.items():
            Console().print(f"{name:>16}  {value}", highlight=False)
    return 0


app.command("sessions")(bench_sessions)


@dataclass(frozen=True, kw_only=True, slots=True)
class CallCost:
    """The cost on one transport, in milliseconds a call; medians."""

    sdk_ms: float
    """Of sequential calls, as `session_ms`."""
    session_ms: float
    sdk_cpu_ms: float
    """CPU time of this process, with `CONCURRENT` calls in flight. In process it is the server's as well."""
    session_cpu_ms: float
    calls_per_s: float
    """With `CONCURRENT` calls in flight over the gateway's one connection."""
    connecting_calls_per_s: float
    """The same, where each call opens and closes a client of the SDK."""

    @property
    def ratio_to_sdk(self) -> float:
        return self.session_ms / self.sdk_ms

    @property
    def cpu_ratio_to_sdk(self) -> float:
        return self.session_cpu_ms / self.sdk_cpu_ms

    @property
    def ratio_to_connecting(self) -> float:
        return self.calls_per_s / self.connecting_calls_per_s


async def measure_calls(calls: int, connects: int) -> dict[str, CallCost]:
    """Measure calls of a small tool; returns the costs by transport.

    Args:
        calls: Sequential calls of each side, and as many concurrent ones.
        connects: Calls for which a client connects.
    """
    own = create_server()
    stdio = StdioServerParameters(command=sys.executable, args=STDIO_ARGUMENTS)
    entry = {"command": sys.executable, "args": STDIO_ARGUMENTS}
    costs: dict[str, CallCost] = {}
    costs["in_process"] = await _measure(own, {"factory": "unused:unused"}, calls, connects, connect=lambda _, __: own)
    costs["stdio"] = await _measure(stdio, entry, calls, connects)
    async with http_server() as url:
        costs["http"] = await _measure(url, {"url": url}, calls, connects)
    return costs


async def _measure(
    target: Any, entry: dict[str, Any], calls: int, connects: int, *, connect: Callable[[Any, str], Any] | None = None
) -> CallCost:
    config = GatewayConfig.model_validate({"servers": {"bench": {"required": True, **entry}}})
    arguments = {"text": _TEXT}
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
        sdk_cpu_ms, session_cpu_ms = await _cpu_in_turns(by_sdk, by_session, calls)
        return CallCost(
            sdk_ms=sdk_ms,
            session_ms=session_ms,
            sdk_cpu_ms=sdk_cpu_ms,
            session_cpu_ms=session_cpu_ms,
            calls_per_s=await _throughput(by_session, calls),
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


async def _cpu_in_turns(one: Call, other: Call, calls: int) -> tuple[float, float]:
    """Medians over `TURNS` turns of each, in milliseconds of this process's CPU time per call."""
    sides: list[tuple[Call, list[float]]] = [(one, []), (other, [])]
    each = max(CONCURRENT, calls // TURNS)
    for turn in range(TURNS):
        for call, samples in sides if turn % 2 else reversed(sides):
            began = time.process_time()
            await _concurrently(call, each)
            samples.append(1e3 * (time.process_time() - began) / each)
    return statistics.median(sides[0][1]), statistics.median(sides[1][1])


async def _throughput(call: Call, calls: int) -> float:
    """Calls per second with `CONCURRENT` calls in flight."""
    began = time.perf_counter()
    await _concurrently(call, calls)
    return calls / (time.perf_counter() - began)


async def _concurrently(call: Call, calls: int) -> None:
    left = iter(range(calls))

    async def caller() -> None:
        for _ in left:
            await call()

    async with anyio.create_task_group() as callers:
        for _ in range(CONCURRENT):
            callers.start_soon(caller)


async def measure_leases(config: GatewayConfig, count: int) -> dict[str, float]:
    """Lease `config`'s servers `count` times, one after the other.

    Returns:
        `cold_s` from the start of the gateway to the first lease, `gateway_start_s` as its part, and median and maximum
        of the later leases in milliseconds.

    Raises:
        ConfigError, GatewayError: the servers cannot be leased.
    """
    began = time.perf_counter()
    async with Gateway(config) as gateway:
        started = time.perf_counter() - began
        task = await _first_task(gateway)
        waits: list[float] = []
        for number in range(count):
            began = time.perf_counter()
            async with gateway.lease(trajectory=f"bench-{number}", task=task, seed=number):
                waits.append(time.perf_counter() - began)
    costs = {
        "cold_s": started + waits[0],
        "gateway_start_s": started,
        "warm_ms_p50": 1e3 * statistics.median(waits[1:]),
        "warm_ms_max": 1e3 * max(waits[1:]),
    }
    return {name: round(value, 3) for name, value in costs.items()}


async def _first_task(gateway: Gateway) -> str:
    """A task to reset the servers to; empty where none lists any."""
    async with gateway.lease(trajectory="bench", task=None, seed=0) as session:
        for server in gateway.catalogue:
            if session.has(Role.TASKS, server):
                listed = await list_tasks(session, server, "train", limit=1)
                return listed[0].task if listed else ""
    return ""
