"""OpenEnv's own client and server under the workload of `benchmarks sessions`, in a separate environment.

    python -m lab.benchmarks.openenv_peer SESSIONS STEPS        prints the same figures as `lab.benchmarks.sessions`
    python -m lab.benchmarks.openenv_peer serve PORT

`make mcp1` sets the environment up. Imports nothing of ours but `costs` and `server_programs`.
"""

# OpenEnv is not in the environment in which types are checked.
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import time
from collections import Counter
from importlib.util import find_spec
from typing import Any

from lab.benchmarks.costs import cpu_s, memory_kb, quantile
from lab.benchmarks.server_programs import listening, missing_descriptors

WAIT_S = 1.0
CONNECTS = 256
"""Connections that are opened at a time: with all at once, OpenEnv's server loses half of them from 8,192 on."""
WORLDS = 1 << 17


def serve(port: int) -> None:
    import uvicorn
    from openenv.core.env_server.http_server import create_fastapi_app
    from openenv.core.env_server.interfaces import Environment
    from openenv.core.env_server.types import Action, Observation, State

    class Wait(Action):
        wait_s: float = WAIT_S

    class Steps(Observation):
        steps: int = 0

    class World(Environment):
        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self) -> None:
            super().__init__()
            self._state = State(episode_id="e", step_count=0)

        def reset(self, *_: Any, **__: Any) -> Steps:
            self._state.step_count = 0
            return Steps(steps=0)

        async def reset_async(self, *_: Any, **__: Any) -> Steps:
            return self.reset()

        def step(self, action: Any, *_: Any, **__: Any) -> Steps:
            time.sleep(action.wait_s)
            return self._taken()

        async def step_async(self, action: Any, *_: Any, **__: Any) -> Steps:
            await asyncio.sleep(action.wait_s)
            return self._taken()

        def _taken(self) -> Steps:
            self._state.step_count += 1
            return Steps(steps=self._state.step_count)

        @property
        def state(self) -> Any:
            return self._state

    missing_descriptors(WORLDS)
    app = create_fastapi_app(World, Wait, Steps, max_concurrent_envs=WORLDS)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="critical", ws_ping_interval=None)


async def measure(server: int, port: int, sessions: int, steps: int) -> dict[str, Any]:
    from openenv.core.generic_client import GenericEnvClient

    clients: list[Any] = []
    failures = Counter[str]()
    waits: list[float] = []
    gate = asyncio.Semaphore(CONNECTS)

    async def connect() -> None:
        try:
            async with gate:
                client = GenericEnvClient(base_url=f"http://127.0.0.1:{port}")
                await client.connect()
                await client.reset()
                clients.append(client)
        except Exception as error:  # the boundary to the peer: whatever it raises is a session lost
            failures[f"open: {type(error).__name__}"] += 1

    async def play(client: Any) -> None:
        try:
            for step in range(1, steps + 1):
                began = time.perf_counter()
                result = await client.step({"wait_s": WAIT_S})
                if result.observation["steps"] != step:
                    failures["wrong answer"] += 1
                    return
                waits.append(time.perf_counter() - began - WAIT_S)
        except Exception as error:  # the boundary to the peer, as above
            failures[type(error).__name__] += 1

    def memory() -> tuple[int, int]:
        gc.collect()
        return memory_kb(os.getpid()), memory_kb(server)

    def cpu() -> tuple[float, float]:
        return time.process_time(), cpu_s(server)

    before, began = memory(), time.perf_counter()
    await asyncio.gather(*(connect() for _ in range(sessions)))
    open_s, held = time.perf_counter() - began, memory()
    began, cpu_before = time.perf_counter(), cpu()
    await asyncio.gather(*(play(client) for client in clients))
    wall_s, spent = time.perf_counter() - began, cpu()
    taken = max(1, len(waits))
    return {
        "sessions": sessions,
        "steps_per_s": len(waits) / wall_s,
        "p50_s": quantile(waits or [0.0], 0.5),
        "p99_s": quantile(waits or [0.0], 0.99),
        "lost": sessions * steps - len(waits),
        "client_ms": 1e3 * (spent[0] - cpu_before[0]) / taken,
        "server_ms": 1e3 * (spent[1] - cpu_before[1]) / taken,
        "client_kb": (held[0] - before[0]) / sessions,
        "server_kb": (held[1] - before[1]) / sessions,
        "open_s": open_s,
        "failures": dict(failures),
    }


def main(sessions: int, steps: int) -> None:
    if find_spec("openenv") is None:
        raise SystemExit(f"error: {sys.executable} has no openenv; `make mcp1` sets up one that has")
    if message := missing_descriptors(sessions):
        raise SystemExit(f"error: {message}")
    with listening([sys.executable, "-m", "lab.benchmarks.openenv_peer", "serve"]) as (process, port):
        figures = asyncio.run(measure(process.pid, port, sessions, steps))
        sys.stdout.write(json.dumps(figures) + "\n")
        sys.stdout.flush()
        process.kill()
        os._exit(0)  # its client leaves a thread for each session, which would be waited for


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(int(sys.argv[2]))
    else:
        main(int(sys.argv[1]), int(sys.argv[2]))
