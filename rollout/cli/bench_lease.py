"""What a lease costs: a place, connections, and every server reset."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

from gateway.config.models import GatewayConfig
from gateway.gateway import Gateway
from gateway.types import Role


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaseCost:
    """Leases one after the other."""

    cold_s: float
    """From nothing to the first lease granted."""
    gateway_start_s: float
    warm_ms_p50: float
    warm_ms_max: float


async def measure_leases(config: GatewayConfig, count: int) -> LeaseCost:
    """Lease `config`'s servers `count` times, two at least. Raises `GatewayError` and `ConfigError`."""
    began = time.perf_counter()
    async with Gateway(config) as gateway:
        started = time.perf_counter() - began
        task = await _first_task(gateway)
        waits: list[float] = []
        for number in range(max(2, count)):
            began = time.perf_counter()
            async with gateway.lease(trajectory=f"bench-{number}", task=task, seed=number):
                waits.append(time.perf_counter() - began)
    return LeaseCost(
        cold_s=started + waits[0],
        gateway_start_s=started,
        warm_ms_p50=1e3 * statistics.median(waits[1:]),
        warm_ms_max=1e3 * max(waits[1:]),
    )


async def _first_task(gateway: Gateway) -> str:
    """A task that the servers can be reset to; empty where none of them knows any."""
    async with gateway.lease(trajectory="bench", task=None, seed=0) as session:
        for server in gateway.catalogue:
            if session.has(Role.TASKS, server):
                found = await session.invoke(Role.TASKS, {"split": "train", "limit": 1}, server=server)
                return found.structured["tasks"][0]["task"] if found.structured else ""
    return ""
