# pyright: basic
"""transformers in process: a model directory, decoded with continuous batching."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
import anyio.to_thread
import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, PreTrainedModel

from gateway.errors import ConfigError
from rollout.decoding.batch import ContinuousBatch, Ending, Request
from rollout.decoding.sampling import Sampling
from rollout.engines.sampling import SamplingParameters, with_logprobs
from rollout.engines.timeouts import Timeouts, result_or_partial
from rollout.environment.task import Origin, TurnSeeds
from rollout.errors import EngineError
from rollout.types import Completion, FinishReason

_REASONS = {Ending.COMPLETED: FinishReason.STOP, Ending.LENGTH: FinishReason.LENGTH, Ending.ABORTED: FinishReason.ABORT}


class Decoder:
    """A model's batch, shared by all trajectories of a run; `decoding` runs it."""

    def __init__(self, model: PreTrainedModel, *, max_sequences: int) -> None:
        self._batch = ContinuousBatch(model, max_sequences=max_sequences)
        # Held while a thread steps the batch, and while requests join or leave it: at most one step's wait.
        self._lock = anyio.Lock()
        self._ended: dict[str, anyio.Event] = {}
        self._work = anyio.Event()
        self._failure: Exception | None = None

    async def decode(self, request: Request) -> Request:
        """Decode a request to its end, or until it is aborted.

        Raises:
            EngineError: decoding failed, for this and every other request.
        """
        ended = anyio.Event()
        async with self._lock:
            if request.ending is not None or self._failure is not None:
                ended.set()
            else:
                self._ended[request.request_id] = ended
                self._batch.add(request)
                self._work.set()
        await ended.wait()
        if self._failure is not None:
            raise EngineError(f"{type(self._failure).__name__}: {self._failure}") from self._failure
        return request

    async def abort(self, request: Request) -> None:
        """End a request before the next step, or before it joins the batch."""
        async with self._lock:
            self._batch.cancel(request)
            self._end(request)

    async def run(self) -> None:
        """Decode until cancelled. A failing step fails all requests, current and future."""
        while self._failure is None:
            if not self._batch:
                self._work = anyio.Event()
                await self._work.wait()
            try:
                async with self._lock:
                    for request in await anyio.to_thread.run_sync(self._batch.step):
                        self._end(request)
            except Exception as error:  # the boundary of the decode loop: each waiting request reports the error
                self._failure = error
                for event in self._ended.values():
                    event.set()

    def _end(self, request: Request) -> None:
        if event := self._ended.pop(request.request_id, None):
            event.set()


class InProcessPolicy:
    """One trajectory's access to the model. A generation that is cancelled returns its partial tokens."""

    def __init__(
        self,
        decoder: Decoder,
        parameters: SamplingParameters,
        origin: Origin,
        *,
        stop_token_ids: Sequence[int],
        timeouts: Timeouts,
    ) -> None:
        self._decoder, self._parameters, self._timeouts = decoder, parameters, timeouts
        self._seeds, self._stops = TurnSeeds(origin, base=parameters.seed), frozenset(stop_token_ids)

    async def generate(self, ids: list[int], *, max_tokens: int, turn: int) -> Completion:
        own = self._parameters
        request = Request(
            request_id=uuid4().hex,
            prompt_ids=list(ids),
            sampling=Sampling(temperature=own.temperature, top_p=own.top_p, top_k=own.top_k, logprobs=True),
            max_tokens=max_tokens,
            stop_ids=self._stops,
            seed=(seed := self._seeds.next(turn)),
        )
        decode, abort = partial(self._decoder.decode, request), partial(self._decoder.abort, request)
        await result_or_partial(decode, abort, self._timeouts)
        reason = _REASONS[request.ending or Ending.ABORTED]
        return with_logprobs(Completion(ids=request.token_ids, finish_reason=reason, seeds=(seed,)), request.logprobs)


def load_model(path: str, *, device: str | None, dtype: str | None) -> PreTrainedModel:
    """Load the model of a directory, by default to a GPU if there is one, in the precision it was saved in.

    Raises:
        ConfigError: there is no model, or it does not load on this device.
    """
    if not (Path(path) / "config.json").is_file():
        problem = f"{path} is no model directory: it has no config.json"
        raise ConfigError(problem, key="--engine", remedy="give a directory as save_pretrained writes it")
    if dtype is not None and not isinstance(getattr(torch, dtype, None), torch.dtype):
        raise ConfigError(f"there is no {dtype!r}", key="--dtype", remedy="one of float32, bfloat16, float16")
    on = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=dtype or "auto", local_files_only=True)
        return model.to(on).eval()
    # torch and transformers raise all of these
    except (OSError, ValueError, RuntimeError, AssertionError, SafetensorError) as error:
        problem = f"cannot be loaded on {on}: {str(error).splitlines()[0]}"
        remedy = "check the directory, --device and --dtype"
        raise ConfigError(problem, file=path, key="--engine", remedy=remedy) from error


def end_ids(model: PreTrainedModel) -> list[int]:
    """The end-of-sequence ids of the model's own generation config."""
    ends = model.generation_config.eos_token_id if model.generation_config else None
    return ends if isinstance(ends, list) else [] if ends is None else [ends]


@asynccontextmanager
async def decoding(model: PreTrainedModel, *, max_sequences: int) -> AsyncGenerator[Decoder]:
    """A decoder that runs as long as the block lasts.

    Raises:
        ConfigError: the model's layers do not all attend to their whole past.
    """
    try:
        decoder = Decoder(model, max_sequences=max_sequences)
    except ValueError as error:
        raise ConfigError(str(error), key="--engine", remedy="serve it with SGLang or vLLM") from error
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(decoder.run)
        try:
            yield decoder
        finally:
            tasks.cancel_scope.cancel()
