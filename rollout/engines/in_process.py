# pyright: basic
"""transformers in process: a model directory, decoded with continuous batching."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.rollout.decoding.batch import Ending, Request
from mcp_rollout.rollout.decoding.decoder import Decoder
from mcp_rollout.rollout.decoding.sampling import Sampling
from mcp_rollout.rollout.engines.sampling import SamplingParameters, with_logprobs
from mcp_rollout.rollout.engines.timeouts import Timeouts, result_or_partial
from mcp_rollout.rollout.environment.task import Origin, TurnSeeds
from mcp_rollout.rollout.errors import EngineError
from mcp_rollout.rollout.types import Completion, FinishReason

_REASONS = {Ending.COMPLETED: FinishReason.STOP, Ending.LENGTH: FinishReason.LENGTH, Ending.ABORTED: FinishReason.ABORT}


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
        try:
            await result_or_partial(decode, abort, self._timeouts)
        except EngineError:
            raise
        except Exception as error:  # the engine's boundary: whatever a decode step raises
            raise EngineError(f"{type(error).__name__}: {error}") from error
        # The decoder fills the request in as it goes, so an aborted one has its partial tokens there.
        reason = _REASONS[request.ending or Ending.ABORTED]
        return with_logprobs(Completion(ids=request.token_ids, finish_reason=reason, seeds=(seed,)), request.logprobs)


def load_model(path: str, *, device: str | None, dtype: str | None) -> PreTrainedModel:
    """Load the model of a directory, by default to a GPU if there is one, in the precision it was saved in.

    Raises:
        ConfigError: there is no model, or it does not load on this device.
    """
    if not (Path(path) / "config.json").is_file():
        problem = f"{path} is not a model directory: it has no config.json"
        raise ConfigError(problem, key="--engine", remedy="give a directory as save_pretrained writes it")
    if dtype is not None and not isinstance(getattr(torch, dtype, None), torch.dtype):
        raise ConfigError(f"there is no {dtype!r}", key="--dtype", remedy="one of float32, bfloat16, float16")
    disable_progress_bar()  # of lines that move the cursor, beside those of a command
    on = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=dtype or "auto", local_files_only=True)
        return model.to(on).eval()
    # torch and transformers raise all of these
    except (OSError, ValueError, RuntimeError, AssertionError, SafetensorError) as error:
        problem = f"cannot be loaded on {on}: {str(error).splitlines()[0]}"
        remedy = "check the directory, --device and --dtype"
        raise ConfigError(problem, file=path, key="--engine", remedy=remedy) from error


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
    try:
        yield decoder
    finally:
        await decoder.close()
