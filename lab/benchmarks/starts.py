"""One run of `benchmarks start`: what a process of a Python server costs, forked against spawned.

    python -m lab.benchmarks.starts FORKS SPAWNS [ARGUMENTS OF PYTHON, by default -m mcp_rollout.mcp_servers.retail]

Takes so many leases at once under `scope: process` and holds all of them: starts per second, CPU time of gateway and
servers per start (user and system), and the proportional set size of each server. Then as many leases, one after the
other, from a pool of forked processes that are ready, with the page faults of each. Prints one JSON object.
"""

from __future__ import annotations

import statistics
import sys
import time
from contextlib import AsyncExitStack
from typing import Any

import anyio

from lab.benchmarks.costs import cpu_by_process, cpu_since_s, descendants, memory_kb, page_faults, quantile
from lab.benchmarks.leases import first_tasks
from lab.benchmarks.runs import print_figures
from mcp_rollout.gateway.config.models import GatewayConfig
from mcp_rollout.gateway.gateway import Gateway
from mcp_rollout.rollout.process import tune_collector

READY_S = 300.0
"""How long a pool may take to fill."""
START_S = 60.0
"""How long one process may take to start, beside all others."""
_IDLE_S, _IDLE_SHARE = 0.5, 0.1


def config(start: str, words: list[str], **entry: Any) -> GatewayConfig:
    server = {
        "command": sys.executable,
        "args": words,
        "scope": "process",
        "start": start,
        "required": True,
        "start_timeout_s": START_S,
        **entry,
    }
    return GatewayConfig.model_validate({"servers": {"server": server}, "max_sessions": 10_000})


async def hold(start: str, words: list[str], count: int) -> dict[str, Any]:
    """Start `count` processes at once, and hold them. A first process, and the fork server, are there before."""
    async with Gateway(config(start, words)) as gateway:
        # Twice: the first lease takes the process that listed the tools, and only the second one starts the fork
        # server.
        for _ in range(2):
            async with gateway.lease(trajectory="before", task=None, seed=0):
                pass
        if gateway.spawned:
            raise SystemExit(f"not forked: {gateway.spawned}")
        before = descendants()
        cpu, own, began = cpu_by_process(before), time.process_time(), time.perf_counter()
        found: dict[str, Any] = {}
        running, all_running = 0, anyio.Event()

        async def lease(number: int) -> None:
            nonlocal running
            async with gateway.lease(trajectory=f"t{number}", task=None, seed=number):
                running += 1
                # Measured by the last lease while the others are held, since a process that has ended has no figures.
                if running == count:
                    wall, processes = time.perf_counter() - began, descendants()
                    spent = time.process_time() - own, cpu_since_s(cpu, processes)
                    servers = sorted(processes - before)
                    # The kernel walks all pages of a process for this: of many processes, about a hundred are read.
                    memory = [memory_kb(pid) / 1024 for pid in servers[:: max(1, count // 100)]]
                    found.update(
                        held=len(servers),
                        starts_per_s=round(count / wall, 1),
                        cpu_ms_per_start=round(1e3 * sum(spent) / count, 1),
                        of_it_gateway_ms=round(1e3 * spent[0] / count, 1),
                        pss_mb=round(statistics.mean(memory), 1),
                    )
                    all_running.set()
                await all_running.wait()

        async with anyio.create_task_group() as tasks:
            for number in range(count):
                tasks.start_soon(lease, number)
        return found


async def lease_ready(words: list[str], count: int) -> dict[str, Any]:
    """Lease `count` forked processes that wait in the pool, reset included; none is started meanwhile."""
    # One more than are leased: the first process, which listed the tools, is spawned, and is among them.
    async with Gateway(config("fork", words, min_ready=count + 1, max_processes=count + 1)) as gateway:
        tasks = await first_tasks(gateway, count)
        with anyio.fail_after(READY_S):
            await _idle()
        tune_collector()  # as a worker does
        before = page_faults(descendants())
        waits, cpu, leased = [0.0] * count, [0.0] * count, set[int]()
        async with AsyncExitStack() as held:
            for number in range(count):
                task = tasks[number % len(tasks)]
                began, spent = time.perf_counter(), time.process_time()
                lease = gateway.lease(trajectory=f"r{number}", task=task, seed=number)
                session = await held.enter_async_context(lease)
                waits[number], cpu[number] = time.perf_counter() - began, time.process_time() - spent
                leased.add(session.connection("server").pid or 0)
            # What a server does after its answer belongs to the lease.
            await _idle()
            faults = [number - before[pid] for pid, number in page_faults(leased).items()]
            memory = [memory_kb(pid) / 1024 for pid in sorted(leased)[:: max(1, count // 100)]]
        return {
            "leased": count,
            "ms_p50": round(1e3 * statistics.median(waits), 2),
            "ms_p99": round(1e3 * quantile(waits, 0.99), 2),
            "ms_max": round(1e3 * max(waits), 2),
            "gateway_cpu_ms": round(1e3 * statistics.median(cpu), 2),
            "page_faults": round(statistics.median(faults)),
            "pss_mb": round(statistics.median(memory), 1),
        }


async def _idle() -> None:
    """Wait until this process and its children have nothing to do: the pool is full, and each process is ready."""
    spent = 1.0
    while spent > _IDLE_S * _IDLE_SHARE:
        before, own = cpu_by_process(descendants()), time.process_time()
        await anyio.sleep(_IDLE_S)
        spent = time.process_time() - own + cpu_since_s(before, descendants())


async def main(forks: int, spawns: int, words: list[str]) -> dict[str, Any]:
    forked, spawned = await hold("fork", words, forks), await hold("spawn", words, spawns)
    ratios = {key: round(forked[key] / spawned[key], 3) for key in ("starts_per_s", "cpu_ms_per_start", "pss_mb")}
    ready = await lease_ready(words, forks)
    return {"program": " ".join(words), "fork": forked, "spawn": spawned, "ratio": ratios, "ready": ready}


if __name__ == "__main__":
    given = sys.argv[3:] or ["-m", "mcp_rollout.mcp_servers.retail"]
    print_figures(lambda: anyio.run(main, int(sys.argv[1]), int(sys.argv[2]), given))
