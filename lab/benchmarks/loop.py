"""A part of `benchmarks turn`: whole retail trajectories with an engine that answers at once.

    python -m lab.benchmarks.loop CONCURRENCY TRAJECTORIES

Plays the longest tasks of retail over stdio, user simulator and score included, with the expert's completions as byte
tokens. Then the same once more with every callback of the event loop timed, and with journals so small that they are
archived meanwhile. Prints one JSON object.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio

from lab.benchmarks.callbacks import timed
from lab.benchmarks.costs import cpu_by_process, cpu_since_s, descendants
from lab.benchmarks.runs import print_figures
from mcp_rollout.gateway.gateway import Gateway
from mcp_rollout.gateway.leases.session import Session
from mcp_rollout.rollout.engines.scripted import expert_script
from mcp_rollout.rollout.environment.config import Environment, load_environment
from mcp_rollout.rollout.environment.rows import environment_tasks
from mcp_rollout.rollout.environment.startup import opened_environment
from mcp_rollout.rollout.environment.task import Origin, Task
from mcp_rollout.rollout.evaluation.play import Job, Lengths, play_all
from mcp_rollout.rollout.process import tune_collector
from mcp_rollout.rollout.tokens.chatml import IM_END, ByteTokens
from mcp_rollout.rollout.trace.record import Trace
from mcp_rollout.rollout.trace.run_record import TokenIds
from mcp_rollout.rollout.trace.store import TraceStore
from mcp_rollout.rollout.types import Completion, Policy, TokenBuilder

ABOVE_S = 0.02
"""A callback that is reported."""
_ARCHIVED_BYTES = 8 * 2**20
WARM_UP = 8
_LONGEST_EVERY = 20
"""Of retail's tasks, every so many-th needs 15 turns."""


@dataclass(frozen=True, slots=True)
class Instant:
    """The policy of one trajectory: its completions are there before they are asked for."""

    completions: Sequence[Completion]

    async def generate(self, ids: list[int], *, max_tokens: int, turn: int) -> Completion:
        return self.completions[turn]


class InstantEngine:
    """Gives each trajectory the completions of its task.

    Args:
        completions: by task.
    """

    name = "instant"
    context_tokens: int | None = None
    token_ids = TokenIds.BYTES

    def __init__(self, completions: dict[str, list[Completion]]) -> None:
        self._completions, self._tokens = completions, ByteTokens()
        self.notes: list[str] = []

    def tokens(self) -> TokenBuilder:
        return self._tokens

    async def policy(self, session: Session, environment: Environment, task: Task, origin: Origin) -> Policy:
        return Instant(self._completions[task.task])


async def longest_tasks(environment: Environment, gateway: Gateway) -> tuple[list[Task], dict[str, list[Completion]]]:
    """The longest tasks, and the expert's completions by task."""
    tasks = (await environment_tasks(environment, gateway, "train", None))[::_LONGEST_EVERY]
    tokens, completions = ByteTokens(), dict[str, list[Completion]]()
    for task in tasks:
        async with gateway.lease(trajectory=f"script-{task.task}", task=task.task, seed=task.seed) as session:
            script = await expert_script(session, task, "retail")
        sampled = [tokens.encode(text + IM_END) for text in script]
        completions[task.task] = [Completion(ids=ids, logprobs=[0.0] * len(ids)) for ids in sampled]
    return tasks, completions


class Retail:
    """The longest tasks of retail, played with an engine that answers at once."""

    def __init__(
        self, environment: Environment, gateway: Gateway, tasks: list[Task], completions: dict[str, list[Completion]]
    ) -> None:
        self._environment, self._gateway, self._tasks = environment, gateway, tasks
        self._engine = InstantEngine(completions)

    @classmethod
    @asynccontextmanager
    async def opened(cls, concurrency: int) -> AsyncGenerator[Retail]:
        """With its servers running, for so many trajectories at a time."""
        environment = load_environment("retail").model_copy(update={"max_sessions": concurrency + 1})
        async with opened_environment(environment) as gateway:
            yield cls(environment, gateway, *await longest_tasks(environment, gateway))

    async def play(
        self, count: int, *, concurrency: int, archive_bytes: int, finished: Callable[[Trace], None]
    ) -> None:
        """Plays `count` trajectories into a journal, which is removed afterwards."""
        jobs = [
            Job(self._environment, self._tasks[number % len(self._tasks)], Origin(row=number, engine="instant"))
            for number in range(count)
        ]
        with tempfile.TemporaryDirectory() as home:
            store = TraceStore(home, archive_bytes=archive_bytes)
            await play_all(
                jobs,
                gateways={self._environment.name: self._gateway},
                engine=self._engine,
                lengths=Lengths(response_tokens=1 << 20),
                store=store,
                concurrency=concurrency,
                finished=finished,
            )
            store.close()
            # In a thread, since a wait on the event loop would be the longest callback.
            await anyio.to_thread.run_sync(store.wait_for_archives)


async def measure(concurrency: int, trajectories: int) -> dict[str, Any]:
    """Plays `trajectories` of them, `concurrency` at a time, twice."""
    turns = failed = 0

    def finished(trace: Trace) -> None:
        nonlocal turns, failed
        turns += len(trace.turns)
        failed += trace.failure is not None or trace.reward is None or trace.reward.score != 1.0

    async with Retail.opened(concurrency) as retail:
        play = partial(retail.play, concurrency=concurrency, finished=finished)
        servers = descendants()
        tune_collector()
        # What the first trajectories import and compile belongs to no turn.
        await play(WARM_UP, archive_bytes=1 << 40)
        turns = 0
        began, own, others = time.perf_counter(), time.process_time(), cpu_by_process(servers)
        # No journal gets so large. Archiving is another process, whose time is not in these figures and whose load
        # would be.
        await play(trajectories, archive_bytes=1 << 40)
        wall = time.perf_counter() - began
        spent = time.process_time() - own, cpu_since_s(others, servers)
        played = turns
        # A pass of its own, since timing every callback adds to what a turn costs.
        with timed(ABOVE_S) as callbacks:
            await play(trajectories, archive_bytes=_ARCHIVED_BYTES)
    return {
        "concurrency": concurrency,
        "trajectories": trajectories,
        "turns": played,
        "failed": failed,
        "turns_per_s": round(played / wall, 1),
        "client_ms_per_turn": round(1e3 * spent[0] / played, 4),
        "servers_ms_per_turn": round(1e3 * spent[1] / played, 4),
        "longest_callback_ms": round(1e3 * callbacks.longest_s, 1),
        "longest_callback": callbacks.longest_name,
        "callbacks_above_20_ms": dict(callbacks.slow),
        "longest_collection_ms": round(1e3 * callbacks.longest_collection_s, 1),
    }


if __name__ == "__main__":
    print_figures(lambda: anyio.run(measure, int(sys.argv[1]), int(sys.argv[2])))
