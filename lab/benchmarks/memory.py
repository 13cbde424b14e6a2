"""`benchmarks memory`: whether memory stays flat while trajectories come and go.

    python -m lab.benchmarks.memory TRAJECTORIES

Plays short trajectories, sixteen at a time, against the kit's server in this process, so that the memory of both sides
is in the figure; each is leased, reset, played, released and written to a journal that is archived meanwhile. Prints
one JSON object.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from lab.benchmarks.costs import memory_kb
from lab.benchmarks.runs import print_figures
from lab.benchmarks.wait_server import MODULE
from mcp_rollout.gateway.gateway import Gateway
from mcp_rollout.rollout.environment.config import Environment, load_environment
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

CONCURRENCY, TURNS, POINTS = 16, 2, 10
ARCHIVE_BYTES = 8 << 20
_SAMPLED = ByteTokens().encode(hermes.write(calls=[Call(name="step", arguments={"wait_s": 0.0})]) + IM_END)


class Stepping:
    """A policy that calls `step` in each turn."""

    async def generate(self, ids: list[int], *, max_tokens: int, turn: int) -> Completion:
        return Completion(ids=_SAMPLED, logprobs=[0.0] * len(_SAMPLED))


async def play(numbers: Iterable[int], environment: Environment, gateway: Gateway, store: TraceStore) -> None:
    """Plays a trajectory for each number. Raises RuntimeError if one fails."""
    limits = Limits.of(environment.limits, assistant_turns=TURNS, response_tokens=1 << 20)
    left = iter(numbers)

    async def policy_for(_: object) -> Stepping:
        return Stepping()

    async def player() -> None:
        for number in left:
            task = Task(environment="wait", task="t", seed=number, prompt=({"role": "user", "content": "Step."},))
            trace = Trace.begin(f"t{number}", task, Origin(row=number))
            await roll_out(
                trace,
                environment=environment,
                gateway=gateway,
                policy_for=policy_for,
                tokens=ByteTokens(),
                limits=limits,
                store=store,
            )
            if trace.failure is not None or len(trace.turns) != TURNS:
                raise RuntimeError(f"trajectory {number}: {trace.failure}")

    await asyncio.gather(*(player() for _ in range(CONCURRENCY)))


async def measure(trajectories: int) -> dict[str, Any]:
    """Memory after each tenth of the trajectories; growth is from the fifth tenth to the last."""
    memory: list[int] = []
    each = trajectories // POINTS
    with tempfile.TemporaryDirectory() as home:
        path = Path(home) / "wait.yaml"
        path.write_text(yaml.safe_dump({"servers": {"wait": {"factory": f"{MODULE}:create_server"}}}))
        environment = load_environment(str(path), None)
        store = TraceStore(home, archive_bytes=ARCHIVE_BYTES)
        async with opened_environment(environment) as gateway:
            tune_collector()
            for point in range(POINTS):
                await play(range(point * each, (point + 1) * each), environment, gateway, store)
                # Garbage in cycles would look like growth, more or less of it from point to point.
                gc.collect()
                memory.append(memory_kb(os.getpid()))
        store.close()
        store.wait_for_archives()  # they are written there
    grown = memory[-1] - memory[POINTS // 2 - 1]
    return {
        "trajectories": each * POINTS,
        "memory_mb": [round(kb / 1024, 1) for kb in memory],
        "grown_bytes_per_trajectory": round(1024 * grown / (each * POINTS / 2), 1),
    }


if __name__ == "__main__":
    print_figures(lambda: asyncio.run(measure(int(sys.argv[1]))))
