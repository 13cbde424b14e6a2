"""What a lease costs where others wait, and what the end of a process costs where others run.

    python -m benchmarks.growth [--waiting 500 16384] [--processes 100 1000]

CPU time, of this process per lease: so many are asked for at once, of which 64 are granted at a time. And of the
sweeper per forked process: so many are held, and then end one after the other. Prints a line for each.
"""

import argparse
import json
import logging
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import anyio.lowlevel
import structlog

from benchmarks.wait_server import MODULE
from gateway.config.models import GatewayConfig
from gateway.gateway import Gateway
from rollout.bench.costs import cpu_s, descendants
from rollout.process import tune_collector

PROGRAM = Path(__file__).parents[1] / "tests" / "gateway" / "forking_server.py"


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


def command_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


async def ending(processes: int) -> None:
    entry = {"command": sys.executable, "args": [str(PROGRAM)], "scope": "process", "start": "fork", "required": True}
    config = GatewayConfig.model_validate({"servers": {"world": entry}, "max_sessions": processes + 1})
    async with Gateway(config) as gateway:
        for _ in range(2):  # the first process is spawned, and the second one starts the fork server
            async with gateway.lease(trajectory="before", task=None, seed=0):
                pass
        (sweeper,) = [pid for pid in descendants() if b"sweeper.py" in command_of(pid)]
        async with AsyncExitStack() as held:
            for number in range(processes):
                lease = gateway.lease(trajectory=f"t{number}", task=None, seed=number)
                await held.enter_async_context(lease)
            spent = cpu_s(sweeper)
        while len(descendants()) > 2:  # noqa: ASYNC110 - the sweeper and the fork server
            await anyio.sleep(0.1)
        said("forked processes that end", processes, 1e3 * (cpu_s(sweeper) - spent) / processes)


def said(what: str, number: int, ms: float) -> None:
    print(json.dumps({"what": what, "number": number, "cpu_ms_each": round(ms, 3)}), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--waiting", type=int, nargs="*", default=[500, 16_384])
    parser.add_argument("--processes", type=int, nargs="*", default=[100, 1000])
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    for count in given.waiting:
        anyio.run(waiting, count)
    for count in given.processes:
        anyio.run(ending, count)
