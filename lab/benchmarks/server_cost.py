"""CPU time of a server per step, with a client that costs next to nothing: the kit's server beside the SDK's.

    python -m lab.benchmarks.server_cost stdio|http [--sessions 2048] [--steps 3]

The workload is that of `python -m lab.benchmarks sessions`, in the 2026-07-28 protocol. The client writes and reads
bytes itself, so that it does not limit the server. Prints a line for each side.
"""

import argparse
import asyncio
import json
import sys
import time
from typing import Any

from lab.benchmarks.costs import cpu_s, quantile
from lab.benchmarks.floor import Ask, over_http, over_stdio
from lab.benchmarks.server_programs import listening, missing_descriptors
from lab.benchmarks.wait_server import MODULE

WAIT_S = 1.0


async def play(side: str, pid: int, ask: Ask, sessions: int, steps: int) -> None:
    waits: list[float] = []

    async def call(number: int, name: str, arguments: dict[str, Any]) -> Any:
        meta = {"mcp-rollout/trajectory": f"t{number}", "mcp-rollout/seed": number}
        answer = await ask("tools/call", {"name": name, "arguments": arguments, "_meta": meta})
        return answer["result"]["structuredContent"]

    async def take(number: int) -> None:
        for step in range(1, steps + 1):
            began = time.perf_counter()
            assert await call(number, "step", {"wait_s": WAIT_S}) == {"result": number * 1000 + step}
            waits.append(time.perf_counter() - began - WAIT_S)

    await ask("server/discover", {})
    await asyncio.gather(*(call(number, "reset", {"task": "t", "seed": number}) for number in range(sessions)))
    began, cpu, own = time.perf_counter(), cpu_s(pid), time.process_time()
    await asyncio.gather(*(take(number) for number in range(sessions)))
    figures = {
        "server": side,
        "sessions": sessions,
        "server_ms": round(1e3 * (cpu_s(pid) - cpu) / len(waits), 3),
        "client_ms": round(1e3 * (time.process_time() - own) / len(waits), 3),
        "steps_per_s": round(len(waits) / (time.perf_counter() - began)),
        "p50_ms": round(1e3 * quantile(waits, 0.5)),
        "p99_ms": round(1e3 * quantile(waits, 0.99)),
    }
    print(json.dumps(figures), flush=True)


async def stdio(side: str, sessions: int, steps: int) -> None:
    async with over_stdio([sys.executable, "-m", MODULE, side]) as (pid, ask):
        await play(side, pid, ask, sessions, steps)


async def http(side: str, sessions: int, steps: int) -> None:
    with listening([sys.executable, "-m", MODULE, side]) as (process, port):
        async with over_http(port) as ask:
            await play(side, process.pid, ask, sessions, steps)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("transport", choices=["stdio", "http"])
    parser.add_argument("--sessions", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=3)
    given = parser.parse_args()
    if problem := missing_descriptors(given.sessions):
        sys.exit(f"error: {problem}")
    for server in ("kit", "sdk"):
        asyncio.run((stdio if given.transport == "stdio" else http)(server, given.sessions, given.steps))
