"""What a process of a Python server costs, forked against spawned, in one run.

    python tests/bench/starts.py [--forks 200] [--spawns 6] [ARGUMENTS OF PYTHON, by default -m mcp_servers.retail]

Takes so many leases at once under `scope: process` and holds all of them: starts per second, CPU time of gateway and
servers per start (user and system, from /proc), and the proportional set size of each server. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import anyio
import structlog

from gateway import Gateway, GatewayConfig

logging.disable(logging.WARNING)
structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def descendants() -> set[int]:
    """All processes below this one."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = {os.getpid()}
    for _ in range(4):
        found |= {pid for pid, parent in parents.items() if parent in found}
    return found - {os.getpid()}


def cpu_s(pids: set[int]) -> float:
    """User and system time of these processes."""
    total = 0.0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += (int(fields[11]) + int(fields[12])) * TICK_S
    return total


def pss_mb(pid: int) -> float:
    """Proportional set size of a process."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def config(start: str, words: list[str], **entry: Any) -> GatewayConfig:
    given = {"command": sys.executable, "args": words, "scope": "process", "start": start, "start_timeout_s": 300}
    return GatewayConfig.model_validate({"servers": {"server": {**given, **entry}}, "max_sessions": 10_000})


async def hold(start: str, words: list[str], count: int) -> dict[str, Any]:
    """Start `count` processes at once, and hold them. A first process, and the fork server, are there before."""
    async with Gateway(config(start, words)) as gateway:
        for _ in range(2):
            async with gateway.lease(trajectory="before", task=None, seed=0):
                pass
        if gateway.spawned:
            raise SystemExit(f"not forked: {gateway.spawned}")
        before = descendants()
        cpu, own, began = cpu_s(before), time.process_time(), time.perf_counter()
        found: dict[str, Any] = {}
        running, all_running = 0, anyio.Event()

        async def lease(number: int) -> None:
            nonlocal running
            async with gateway.lease(trajectory=f"t{number}", task=None, seed=number):
                running += 1
                if running == count:
                    wall, processes = time.perf_counter() - began, descendants()
                    spent = time.process_time() - own, cpu_s(processes) - cpu
                    servers = sorted(processes - before)
                    memory = [pss_mb(pid) for pid in servers[:: max(1, count // 100)]]
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


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--forks", type=int, default=200)
    parser.add_argument("--spawns", type=int, default=6)
    known, words = parser.parse_known_args()
    words = words or ["-m", "mcp_servers.retail"]
    forked, spawned = await hold("fork", words, known.forks), await hold("spawn", words, known.spawns)
    ratios = {key: round(forked[key] / spawned[key], 3) for key in ("starts_per_s", "cpu_ms_per_start", "pss_mb")}
    sys.stdout.write(json.dumps({"program": words, "fork": forked, "spawn": spawned, "ratio": ratios}) + "\n")


if __name__ == "__main__":
    anyio.run(main)
