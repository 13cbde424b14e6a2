"""`benchmarks lease`: a lease of an environment's servers beside what the SDK's own clients take for the same reset."""

from __future__ import annotations

import os
import statistics
import time
from contextlib import AsyncExitStack
from typing import Any

from mcp import Client, StdioServerParameters

from lab.benchmarks.costs import quantile
from mcp_rollout.gateway.config.models import GatewayConfig, Kind
from mcp_rollout.gateway.gateway import Gateway
from mcp_rollout.gateway.types import SEED_META, TRAJECTORY_META, Role
from mcp_rollout.rollout.environment.harness import list_tasks


async def measure_leases(config: GatewayConfig, count: int) -> dict[str, float]:
    """Lease `config`'s servers `count` times, one after the other, in turns with the peer.

    The peer is a client of the SDK for each server over stdio or HTTP, which calls the server's reset and release.

    Returns:
        `cold_s`: the gateway's start, `gateway_start_s`, and the first lease with a reset, without the lease between
        them that finds a task (under scope `process` it takes the process of the start, so that the first lease with a
        reset starts another one). Of the later leases
        median, 99th percentile and maximum in milliseconds, and `cpu_ms`, CPU time of this process. `sdk_cold_s`,
        `sdk_warm_ms_p50` and `sdk_cpu_ms` are the peer's: connecting and a reset, and resets with releases by clients
        that stay connected.

    Raises:
        ConfigError, GatewayError: the servers cannot be leased.
    """
    async with AsyncExitStack() as stack:
        began = time.perf_counter()
        gateway = await stack.enter_async_context(Gateway(config))
        started = time.perf_counter() - began
        for failure in gateway.failures.values():
            raise failure  # the peer would meet it as well, and say less
        task = await first_task(gateway)
        clients: dict[str, Client] = {}
        connecting = time.perf_counter()
        for server, target in _targets(config).items():
            clients[server] = await stack.enter_async_context(Client(target))
        await _reset(gateway, clients, task, -1)
        connected = time.perf_counter() - connecting
        waits, cpu, peer, peer_cpu = ([0.0] * count for _ in range(4))
        for number in range(count):
            began, spent = time.perf_counter(), time.process_time()
            async with gateway.lease(trajectory=f"bench-{number}", task=task, seed=number):
                waits[number] = time.perf_counter() - began
            cpu[number] = time.process_time() - spent
            began, spent = time.perf_counter(), time.process_time()
            await _reset(gateway, clients, task, number)
            peer[number], peer_cpu[number] = time.perf_counter() - began, time.process_time() - spent
    costs = {
        "cold_s": started + waits[0],
        "gateway_start_s": started,
        "warm_ms_p50": 1e3 * statistics.median(waits[1:]),
        "warm_ms_p99": 1e3 * quantile(waits[1:], 0.99),
        "warm_ms_max": 1e3 * max(waits[1:]),
        "cpu_ms": 1e3 * statistics.median(cpu[1:]),
        "sdk_cold_s": connected,
        "sdk_warm_ms_p50": 1e3 * statistics.median(peer[1:]),
        "sdk_cpu_ms": 1e3 * statistics.median(peer_cpu[1:]),
    }
    return {name: round(value, 3) for name, value in costs.items()}


def _targets(config: GatewayConfig) -> dict[str, Any]:
    """What the SDK's client connects to, by server."""
    found: dict[str, Any] = {}
    for server, entry in config.servers.items():
        if entry.kind is Kind.STDIO and entry.command is not None:
            environment = {**os.environ, **entry.env}
            found[server] = StdioServerParameters(command=entry.command, args=list(entry.args), env=environment)
        elif entry.kind is Kind.HTTP and entry.url is not None:
            found[server] = entry.url
    return found


async def _reset(gateway: Gateway, clients: dict[str, Client], task: str, seed: int) -> None:
    for server, client in clients.items():
        roles = {tool.role: tool.name for tool in gateway.catalogue[server]}
        meta: Any = {TRAJECTORY_META: f"peer-{seed}", SEED_META: seed}
        if (reset := roles.get(Role.RESET)) is not None:
            await client.call_tool(reset, {"task": task, "seed": seed}, meta=meta)
        if (release := roles.get(Role.RELEASE)) is not None:
            await client.call_tool(release, {}, meta=meta)


async def first_task(gateway: Gateway) -> str:
    """A task to reset the servers to; empty where none lists any. Takes a lease."""
    return (await first_tasks(gateway, 1))[0]


async def first_tasks(gateway: Gateway, count: int) -> list[str]:
    """Up to `count` tasks to reset the servers to; an empty one where none lists any. Takes a lease."""
    async with gateway.lease(trajectory="bench", task=None, seed=0) as session:
        for server in gateway.catalogue:
            if session.has(Role.TASKS, server):
                return [item.task for item in await list_tasks(session, server, "train", limit=count)] or [""]
    return [""]
