# pyright: basic
"""transformers in process: a model directory, continuous batching, one token for every trajectory a step."""

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
from rollout.engines.completions import checked
from rollout.engines.interruption import NoResult, result_or_rest
from rollout.engines.parameters import SamplingParameters, Waits
from rollout.environment.task import Origin, TurnSeeds
from rollout.errors import EngineError
from rollout.types import Completion, FinishReason

_REASONS = {
    Ending.COMPLETED: FinishReason.STOP,
    Ending.LENGTH: FinishReason.LENGTH,
    Ending.ABORTED: FinishReason.ABORT,
}


class InProcess:
    """One model and its batch. Decodes as long as its block, see `decoding`."""

    def __init__(self, model: PreTrainedModel, *, max_sequences: int) -> None:
        self._batch = ContinuousBatch(model, max_sequences=max_sequences)
        self._wanted: list[Request] = []
        self._unwanted: list[Request] = []
        self._ended: dict[int, anyio.Event] = {}
        self._work = anyio.Event()
        self._broken: Exception | None = None

    async def decode(self, request: Request) -> Request:
        """The same request, ended. It joins the batch before the next step.

        Raises:
            EngineError: decoding failed, for this and for every other request.
        """
        if self._broken is None:
            ended = self._ended[id(request)] = anyio.Event()
            self._wanted.append(request)
            self._work.set()
            await ended.wait()
        if self._broken is not None:
            raise EngineError(f"{type(self._broken).__name__}: {self._broken}") from self._broken
        return request

    async def cancel(self, request: Request) -> None:
        """End it before the next step."""
        self._unwanted.append(request)
        self._work.set()

    async def run(self) -> None:
        """Decode until cancelled. A step that fails fails everything that waits, now and later."""
        while self._broken is None:
            self._admit()
            if not self._batch:
                self._work = anyio.Event()
                await self._work.wait()
                continue
            try:
                for request in await anyio.to_thread.run_sync(self._batch.step):
                    self._end(request)
            except Exception as error:  # the boundary of the decode loop: its waiters must learn of it
                self._broken = error
                for event in self._ended.values():
                    event.set()

    def _admit(self) -> None:
        """The batch changes between steps only."""
        for request in self._wanted:
            self._batch.add(request)
        self._wanted.clear()
        for request in self._unwanted:
            if id(request) in self._ended:
                self._batch.cancel(request)
                self._end(request)
        # One that was interrupted before it arrived ends when it does.
        self._unwanted = [request for request in self._unwanted if request.ending is None]

    def _end(self, request: Request) -> None:
        if event := self._ended.pop(id(request), None):
            event.set()


class InProcessPolicy:
    """One trajectory's access to the model.

    A generation that is cancelled comes back with its partial tokens.
    """

    def __init__(
        self,
        engine: InProcess,
        parameters: SamplingParameters,
        origin: Origin,
        *,
        stop_token_ids: Sequence[int],
        waits: Waits,
    ) -> None:
        self._engine, self._parameters, self._waits = engine, parameters, waits
        self._seeds, self._stops = TurnSeeds(origin, base=parameters.seed), frozenset(stop_token_ids)
        self._request: Request | None = None

    async def generate(self, ids: list[int], *, max_tokens: int, turn: int) -> Completion:
        own = self._parameters
        self._request = request = Request(
            request_id=uuid4().hex,
            prompt_ids=list(ids),
            sampling=Sampling(temperature=own.temperature, top_p=own.top_p, top_k=own.top_k, logprobs=True),
            max_tokens=max_tokens,
            stop_ids=self._stops,
            seed=self._seeds.next(turn),
        )
        try:
            await result_or_rest(
                partial(self._engine.decode, request),
                self._stop,
                timeout_s=self._waits.generate_timeout_s,
                grace_s=self._waits.abort_timeout_s,
            )
        except NoResult as error:
            wait = self._waits.generate_timeout_s
            raise EngineError(f"no completion within generate_timeout_s={wait}") from error
        finally:
            self._request = None
        reason = _REASONS[request.ending or Ending.ABORTED]
        return checked(Completion(ids=request.token_ids, finish_reason=reason), request.logprobs)

    async def _stop(self) -> None:
        """Make the `generate` under way return what it has."""
        if self._request is not None:
            await self._engine.cancel(self._request)


def load_model(path: str, *, device: str | None, dtype: str | None) -> PreTrainedModel:
    """The model of a directory; on a GPU where there is one, in the precision it was saved in, if not told otherwise.

    Raises:
        ConfigError: there is none, or not for this device.
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
        raise ConfigError(
            problem, file=path, key="--engine", remedy="check the directory, --device and --dtype"
        ) from error


def end_ids(model: PreTrainedModel) -> list[int]:
    """Ids after which the model's own generation config ends."""
    ends = model.generation_config.eos_token_id if model.generation_config else None
    return ends if isinstance(ends, list) else [] if ends is None else [ends]


@asynccontextmanager
async def decoding(model: PreTrainedModel, *, max_sequences: int) -> AsyncGenerator[InProcess]:
    """An engine that decodes as long as the block lasts.

    Raises:
        ConfigError: the model's layers do not all attend to their whole past.
    """
    try:
        engine = InProcess(model, max_sequences=max_sequences)
    except ValueError as error:
        raise ConfigError(str(error), key="--engine", remedy="serve it with SGLang or vLLM") from error
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(engine.run)
        try:
            yield engine
        finally:
            tasks.cancel_scope.cancel()
