"""A CPU engine in simulated time: a generation takes as long as its seed says, however fast this machine decodes.

verl's processes load it with VERL_USE_EXTERNAL_MODULES; it takes the place of `transformers_cpu`. `GENERATION_S` in the
environment scales all times; 1 is a median of 4 s and a 99th percentile of 40 s for a generation of 30 tokens.
"""

from __future__ import annotations

import json
import math
import os
import time
from statistics import NormalDist
from typing import Any

import anyio
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry

import mcp_rollout.rollout.verl_cpu.accelerator  # noqa: F401 - registers what is replaced below
from mcp_rollout.rollout.decoding.batch import Ending, Request
from mcp_rollout.rollout.decoding.decoder import Decoder
from mcp_rollout.rollout.decoding.sampling import uniform
from mcp_rollout.rollout.verl_cpu import ROLLOUT_NAME
from mcp_rollout.rollout.verl_cpu.replica import TransformersReplica
from mcp_rollout.rollout.verl_cpu.server import TransformersServer

MEDIAN_S, P99_S, TOKENS = 4.0, 40.0, 30
SIGMA = math.log(P99_S / MEDIAN_S) / NormalDist().inv_cdf(0.99)


def generation_s(seed: int, tokens: int) -> float:
    """Seconds that so many tokens of a generation with this seed take, at scale 1."""
    number = min(max(uniform(seed, -1), 1e-6), 1 - 1e-6)
    return MEDIAN_S * math.exp(SIGMA * NormalDist().inv_cdf(number)) * tokens / TOKENS


class SlowDecoder(Decoder):
    """Decodes at once, and gives the tokens out as time passes: an abort leaves those whose time has come."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._scale = float(os.environ.get("GENERATION_S", "1"))
        self._given: set[anyio.Event] = set()

    async def decode(self, request: Request) -> Request:
        aborted, began = anyio.Event(), time.monotonic()
        self._given.add(aborted)
        await super().decode(request)
        seconds = self._scale * generation_s(request.seed, len(request.token_ids))
        with anyio.move_on_after(began + seconds - time.monotonic()):  # decoding has taken some of it
            await aborted.wait()
        self._given.discard(aborted)
        share = (time.monotonic() - began) / max(seconds, 1e-9)
        if aborted.is_set() and share < 1:
            count = int(share * len(request.token_ids))
            request.ids = request.prompt_ids + request.token_ids[:count]
            request.logprobs, request.ending = request.logprobs[:count], Ending.ABORTED
        return request

    async def abort_all(self) -> None:
        await super().abort_all()
        for aborted in self._given:
            aborted.set()


class SlowServer(TransformersServer):
    """Writes beside its engine log when each generation began and ended."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._decoder = SlowDecoder(self._model, max_sequences=self._config.max_num_seqs)
        decode = self._decoder.decode

        async def timed(request: Request) -> Request:
            began = time.time()
            done = await decode(request)
            assert self._engine_log is not None
            with self._engine_log.with_suffix(".busy").open("a") as file:
                file.write(json.dumps([began, time.time()]) + "\n")
            return done

        self._decoder.decode = timed


class SlowReplica(TransformersReplica):
    server_class = SlowServer


def _load_replica() -> type[RolloutReplica]:
    return SlowReplica


RolloutReplicaRegistry.register(ROLLOUT_NAME, _load_replica)
