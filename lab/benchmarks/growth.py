"""What a lease costs where others wait, the end of a process where others run, and a turn where contexts are compacted.

    python -m lab.benchmarks.growth [--waiting 500 16384] [--processes 100 1000] [--turns 15 400]

CPU time, of this process per lease: so many are asked for at once, of which 64 are granted at a time. And of the
sweeper per forked process: so many are held, and then end one after the other. And of this process per turn, without
the engine: trajectories of so many turns, the last ones under `compact` with a summary after each 20 turns, with a
tokenizer of transformers and results of 400 characters. Prints a line for each, and how many times a turn of the
shortest those of the others cost.
"""

import argparse
import json
import logging
import os
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import anyio.lowlevel
import structlog
from mcp.server.mcpserver import MCPServer

from lab.benchmarks.costs import cpu_s, descendants
from lab.benchmarks.server_programs import sweepers_of
from lab.benchmarks.wait_server import MODULE
from mcp_rollout.gateway.config.models import GatewayConfig
from mcp_rollout.gateway.gateway import Gateway
from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.environment.task import Origin, Task
from mcp_rollout.rollout.formats import hermes
from mcp_rollout.rollout.loop.limits import Limits
from mcp_rollout.rollout.loop.trajectory import roll_out
from mcp_rollout.rollout.process import tune_collector
from mcp_rollout.rollout.trace.record import Trace
from mcp_rollout.rollout.trace.store import TraceStore
from mcp_rollout.rollout.types import Call, Completion, ModelTokens

ASKED = "Sum up now"
AT_TOKENS = 6600
"""Of which 400 turns of 400 characters are 20 compactions."""
ROUNDS = 5
COMPACT: dict[str, Any] = {"keep_turns": 2, "summary_tokens": 512, "instruction": ASKED}
PROGRAM = Path(__file__).parents[2] / "tests" / "gateway" / "forking_server.py"


async def waiting(leases: int) -> None:
    config = GatewayConfig.model_validate({"servers": {"wait": {"factory": f"{MODULE}:in_process"}}})
    async with Gateway(config) as gateway:
        tune_collector()

        async def play(number: int) -> None:
            async with gateway.lease(trajectory=f"t{number}", task=None, seed=number):
                await anyio.lowlevel.checkpoint()

        spent = time.process_time()
        async with anyio.create_task_group() as tasks:
            for number in range(leases):
                tasks.start_soon(play, number)
        said("leases that wait", leases, 1e3 * (time.process_time() - spent) / leases)


async def ending(processes: int) -> None:
    entry = {"command": sys.executable, "args": [str(PROGRAM)], "scope": "process", "start": "fork", "required": True}
    config = GatewayConfig.model_validate({"servers": {"world": entry}, "max_sessions": processes + 1})
    async with Gateway(config) as gateway:
        for _ in range(2):  # the first process is spawned, and the second one starts the fork server
            async with gateway.lease(trajectory="before", task=None, seed=0):
                pass
        (sweeper,) = sweepers_of(os.getpid())
        async with AsyncExitStack() as held:
            for number in range(processes):
                lease = gateway.lease(trajectory=f"t{number}", task=None, seed=number)
                await held.enter_async_context(lease)
            spent = cpu_s(sweeper)
        while len(descendants()) > 1:  # noqa: ASYNC110 - the fork server
            await anyio.sleep(0.1)
        said("forked processes that end", processes, 1e3 * (cpu_s(sweeper) - spent) / processes)


def pages() -> MCPServer:
    """A server whose tool returns 400 characters."""
    server = MCPServer("pages", log_level="ERROR")

    @server.tool(structured_output=False)
    async def read(page: int) -> str:
        """A page."""
        return f"Page {page}. " + "It has words on it. " * 19

    return server


class Reading:
    """A policy whose completions are there before they are asked for; it reads pages, and sums up where it is asked."""

    def __init__(self, tokens: ModelTokens, turns: int) -> None:
        self._tokens, self._read, self.spent = tokens, 0, 0.0
        self._calls = [
            tokens.encode_completion(hermes.write(calls=[Call(name="read", arguments={"page": number})]))
            for number in range(turns)
        ]
        self._summary = tokens.encode_completion("Nothing on the pages was worth a word. " * 8)

    async def generate(self, ids: list[int], *, max_tokens: int, turn: int) -> Completion:
        began = time.process_time()
        is_asked = ASKED in self._tokens.decode(ids[-40:])
        sampled = self._summary if is_asked else self._calls[self._read]
        self._read += not is_asked
        self.spent += time.process_time() - began
        return Completion(ids=list(sampled), logprobs=[0.0] * len(sampled))


async def turning(turns: int, strategy: dict[str, Any], tokens: ModelTokens, *, plays: int) -> tuple[float, int]:
    """The processor time of a turn in ms, and the summaries of a trajectory."""
    servers = {"pages": {"factory": "lab.benchmarks.growth:pages", "trusted": True}}
    environment = Environment.model_validate({"name": "pages", "servers": servers, "strategy": strategy})
    limits = Limits(response_tokens=1 << 20, assistant_turns=turns)
    spent, summaries = 0.0, 0
    with TemporaryDirectory() as home:
        store = TraceStore(home)
        async with Gateway(environment) as gateway:
            tune_collector()
            for number in range(plays):
                policy = Reading(tokens, turns)

                async def policy_for(_: object, policy: Reading = policy) -> Reading:
                    return policy

                task = Task(environment="pages", task="t", seed=1, prompt=({"role": "user", "content": "Read."},))
                trace, began = Trace.begin(f"t{number}", task, Origin(row=number)), time.process_time()
                await roll_out(
                    trace,
                    environment=environment,
                    gateway=gateway,
                    policy_for=policy_for,
                    tokens=tokens,
                    limits=limits,
                    store=store,
                )
                if trace.turns_taken != turns or trace.failure is not None:
                    raise RuntimeError(f"{trace.turns_taken} turns: {trace.stop_reason} {trace.failure}")
                spent += time.process_time() - began - policy.spent
                summaries = sum(turn.is_summary for turn in trace.turns)
        store.close()
    return 1e3 * spent / (plays * turns), summaries


async def turning_at(counts: Sequence[int], tokens: ModelTokens) -> None:
    """Rounds in turn, so that other work on the machine slows all; the first imports and compiles, and is left out."""
    made: dict[int, list[float]] = {count: [] for count in counts}
    summaries: dict[int, int] = {}
    for _ in range(ROUNDS + 1):
        for number, count in enumerate(counts):
            at_tokens = AT_TOKENS if number else 1 << 19
            strategy = {"use": "compact", "compact": COMPACT | {"at_tokens": at_tokens}}
            ms, summaries[count] = await turning(count, strategy, tokens, plays=max(1, 400 // count))
            made[count].append(ms)
    for count in counts:
        said(f"turns (compact, {summaries[count]} summaries)", count, median(made[count][1:]))
    for count in counts[1:]:
        ratios = [each / first for each, first in zip(made[count][1:], made[counts[0]][1:], strict=True)]
        of = {"what": f"times a turn of {counts[0]}", "number": count, "rounds": ROUNDS}
        found = {"median": median(ratios), "least": min(ratios), "most": max(ratios)}
        print(json.dumps(of | {name: round(each, 3) for name, each in found.items()}), flush=True)


def said(what: str, number: int, ms: float) -> None:
    print(json.dumps({"what": what, "number": number, "cpu_ms_each": round(ms, 3)}), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--waiting", type=int, nargs="*", default=[500, 16_384])
    parser.add_argument("--processes", type=int, nargs="*", default=[100, 1000])
    parser.add_argument("--turns", type=int, nargs="*", default=[15, 400])
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    for count in given.waiting:
        anyio.run(waiting, count)
    for count in given.processes:
        anyio.run(ending, count)
    if given.turns:
        from mcp_rollout.rollout.tokens.verl_builder import load_tokens
        from mcp_rollout.rollout.verl_cpu.tiny_model import make_tiny_model

        with TemporaryDirectory() as model:
            tokens = load_tokens(str(make_tiny_model(Path(model), hidden=64, layers=1)))
        anyio.run(turning_at, given.turns, tokens)
