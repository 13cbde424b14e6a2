"""`benchmarks overlap`: how much of an engine's throughput is kept while tools take seconds.

    python -m lab.benchmarks.overlap ours|sdk stdio|http TRAJECTORIES TURNS

The engine has a fixed number of places, and each generation takes one for a fixed time, so that its throughput is
known: what a trajectory does besides must overlap with the generations of others. Tools wait 0.2 to 2 s on the
server. `ours` plays whole trajectories; `sdk` is a loop of generations and calls by the SDK's own client, which
validates, records and scores nothing. Prints one JSON object.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import random
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import yaml
from mcp import Client, StdioServerParameters

from lab.benchmarks.costs import cpu_by_process, cpu_since_s, descendants
from lab.benchmarks.runs import print_figures
from lab.benchmarks.server_programs import listening, missing_descriptors
from lab.benchmarks.wait_server import MODULE
from mcp_rollout.gateway.types import SEED_META, TRAJECTORY_META
from mcp_rollout.rollout.environment.config import load_environment
from mcp_rollout.rollout.environment.startup import opened_environment
from mcp_rollout.rollout.environment.task import Origin, Task
from mcp_rollout.rollout.formats import hermes
from mcp_rollout.rollout.loop.limits import Limits
from mcp_rollout.rollout.loop.trajectory import roll_out
from mcp_rollout.rollout.process import tune_collector
from mcp_rollout.rollout.tokens.chatml import IM_END, ByteTokens
from mcp_rollout.rollout.trace.record import Trace
from mcp_rollout.rollout.trace.store import TraceStore
from mcp_rollout.rollout.types import Call, Completion

PLACES, GENERATION_S = 128, 0.5
"""The engine makes 256 turns a second at most."""
TOOL_S = (0.2, 2.0)


class PlacedEngine:
    """Generates for at most `PLACES` at a time; sums the seconds for which its places were taken.

    It serves its own queue, as an engine in a process of its own does: a request that waits takes a place at the moment
    at which it is free, also where this process is busy then. A place stays empty only for want of a request.
    """

    def __init__(self) -> None:
        self._free = [0.0] * PLACES
        """A heap of the moments at which each place is free."""
        self.taken: list[tuple[float, float]] = []
        self.first: dict[int, float] = {}
        """When the first generation of each trajectory began."""

    async def generate(self, trajectory: int) -> None:
        began = max(time.perf_counter(), self._free[0])
        until = began + GENERATION_S
        heapq.heapreplace(self._free, until)
        self.taken.append((began, until))
        self.first.setdefault(trajectory, began)
        await asyncio.sleep(until - time.perf_counter())

    def share(self, begin: float, end: float) -> float:
        """The share of its places that were taken between two moments."""
        within = (max(0.0, min(end, until) - max(begin, since)) for since, until in self.taken)
        return sum(within) / (PLACES * (end - begin))


class Slow:
    """The policy of one trajectory: a call of `step` in each turn, after the engine's time."""

    def __init__(self, engine: PlacedEngine, number: int, turns: int) -> None:
        self._engine, self._number, self._waits = engine, number, waits_of(number, turns)

    async def generate(self, ids: list[int], *, max_tokens: int, turn: int) -> Completion:
        await self._engine.generate(self._number)
        call = Call(name="step", arguments={"wait_s": self._waits[turn]})
        sampled = ByteTokens().encode(hermes.write(calls=[call]) + IM_END)
        return Completion(ids=sampled, logprobs=[0.0] * len(sampled))


def waits_of(number: int, turns: int) -> list[float]:
    """Seconds that the tool waits in each turn of a trajectory."""
    draw = random.Random(number)
    return [round(draw.uniform(*TOOL_S), 3) for _ in range(turns)]


async def ours(entry: dict[str, Any], engine: PlacedEngine, trajectories: int, turns: int) -> tuple[list[float], int]:
    """Whole trajectories; returns when each ended, and how many failed."""
    ends: list[float] = []
    failed = 0
    with tempfile.TemporaryDirectory() as home:
        path = Path(home) / "wait.yaml"
        path.write_text(yaml.safe_dump({"servers": {"wait": entry}, "max_sessions": trajectories}))
        environment = load_environment(str(path), None)
        limits = Limits.of(environment.limits, assistant_turns=turns, response_tokens=1 << 20)
        store = TraceStore(home)
        async with opened_environment(environment) as gateway:
            tune_collector()

            async def play(number: int) -> None:
                nonlocal failed
                task = Task(environment="wait", task="t", seed=number, prompt=({"role": "user", "content": "Wait."},))

                async def policy_for(_: object) -> Slow:
                    return Slow(engine, number, turns)

                trace = await roll_out(
                    Trace.begin(f"t{number}", task, Origin(row=number)),
                    environment=environment,
                    gateway=gateway,
                    policy_for=policy_for,
                    tokens=ByteTokens(),
                    limits=limits,
                    store=store,
                )
                failed += trace.failure is not None or len(trace.turns) != turns
                ends.append(time.perf_counter())

            await asyncio.gather(*(play(number) for number in range(trajectories)))
        store.close()
    return ends, failed


async def sdk(target: Any, engine: PlacedEngine, trajectories: int, turns: int) -> tuple[list[float], int]:
    """A loop of generations and the SDK's calls."""
    ends: list[float] = []
    failed = 0
    async with Client(target) as client:
        tune_collector()

        async def play(number: int) -> None:
            nonlocal failed
            meta: Any = {TRAJECTORY_META: f"t{number}", SEED_META: number}
            await client.call_tool("reset", {"task": "t", "seed": number}, meta=meta)
            for wait_s in waits_of(number, turns):
                await engine.generate(number)
                result = await client.call_tool("step", {"wait_s": wait_s}, meta=meta)
                failed += bool(result.is_error)
            ends.append(time.perf_counter())

        await asyncio.gather(*(play(number) for number in range(trajectories)))
    return ends, failed


@contextlib.asynccontextmanager
async def serving(transport: str) -> AsyncGenerator[tuple[dict[str, Any], Any]]:
    """The kit's server: as an entry, and as a target of the SDK's client."""
    if transport == "stdio":
        arguments = ["-m", MODULE, "kit"]
        yield (
            {"command": sys.executable, "args": arguments},
            StdioServerParameters(command=sys.executable, args=arguments),
        )
        return
    with listening([sys.executable, "-m", MODULE, "kit"]) as (_, port):
        url = f"http://127.0.0.1:{port}/mcp"
        yield {"url": url}, url


async def measure(side: str, transport: str, trajectories: int, turns: int) -> dict[str, Any]:
    """Plays all at once, and measures from when each has begun, until a first one has ended."""
    engine = PlacedEngine()
    async with serving(transport) as (entry, target):
        own, others = time.process_time(), cpu_by_process(descendants())
        play = ours(entry, engine, trajectories, turns) if side == "ours" else sdk(target, engine, trajectories, turns)
        ends, failed = await play
        spent = time.process_time() - own, cpu_since_s(others, descendants())
    # Before, leases are still opened, and afterwards too few trajectories are left.
    begin = max(engine.first.values())
    end = min(ends)
    count = trajectories * turns
    return {
        "side": side,
        "transport": transport,
        "trajectories": trajectories,
        "turns": turns,
        "kept": round(engine.share(begin, end), 4) if end > begin else None,
        "measured_s": round(end - begin, 1),
        "failed": failed,
        "client_ms_per_turn": round(1e3 * spent[0] / count, 3),
        "server_ms_per_turn": round(1e3 * spent[1] / count, 3) if transport == "http" else None,
    }


if __name__ == "__main__":
    if problem := missing_descriptors(int(sys.argv[3])):
        raise SystemExit(f"error: {problem}")
    print_figures(lambda: asyncio.run(measure(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))
