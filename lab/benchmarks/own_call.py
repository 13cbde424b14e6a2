"""What a call costs in the gateway itself: `Session.call` with an answer that is there already.

    python -m lab.benchmarks.own_call [--calls 1000] [--rounds 20]

Arguments are validated, the request is built, the answer checked and read as for any server over stdio; but for the
first call nothing is written to its pipe or read from it. Prints the CPU time of the fastest round.
"""

import argparse
import logging
import sys
import time
from collections.abc import Mapping

import anyio
import structlog

from lab.benchmarks.echo_server import STDIO_ARGUMENTS
from mcp_rollout.gateway.config.models import GatewayConfig
from mcp_rollout.gateway.gateway import Gateway
from mcp_rollout.gateway.transport.channel import OwnChannel
from mcp_rollout.gateway.transport.delivery import Delivery
from mcp_rollout.gateway.transport.messages import Json
from mcp_rollout.rollout.process import tune_collector

TEXT = "x" * 100


class Answered(OwnChannel):
    """A channel that asks its server once, and has the answer from then on."""

    def __init__(self, asked: OwnChannel) -> None:
        self._asked = asked
        self._answer: Json | None = None

    async def answer(self, request: Json, headers: Mapping[str, str], delivery: Delivery) -> Json:
        if self._answer is None:
            self._answer = await self._asked.answer(request, headers, delivery)
        return self._answer


async def main(calls: int, rounds: int) -> None:
    entry = {"command": sys.executable, "args": STDIO_ARGUMENTS, "required": True}
    config = GatewayConfig.model_validate({"servers": {"bench": entry}})
    async with Gateway(config) as gateway, gateway.lease(trajectory="t", task=None, seed=1) as session:
        link = next(iter(gateway.connections))._link  # pyright: ignore[reportPrivateUsage]
        assert isinstance(link.channel, OwnChannel)
        link.channel = Answered(link.channel)
        tune_collector()
        spent: list[float] = []
        for _ in range(rounds):
            began = time.process_time()
            for _ in range(calls):
                await session.call("echo", {"text": TEXT})
            spent.append(time.process_time() - began)
    sys.stdout.write(f"{1e6 * min(spent) / calls:.1f} us of CPU a call\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=20)
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    anyio.run(main, given.calls, given.rounds)
