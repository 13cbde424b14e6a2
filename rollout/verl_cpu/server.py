# pyright: basic
"""The transformers engine as verl calls it: tokens in, tokens out, weights from the trainer."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig
from transformers import AutoModelForCausalLM
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.config import HFModelConfig, RolloutConfig
from verl.workers.rollout.replica import TokenOutput

from rollout.decoding.batch import ContinuousBatch, Ending, Request
from rollout.decoding.sampling import Sampling
from rollout.verl_cpu.engine_log import EngineLog
from rollout.verl_cpu.names import ROLLOUT_NAME

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerOptions:
    """`actor_rollout_ref.rollout.engine_kwargs.transformers_cpu`."""

    engine_log: str | None = None
    """File that gets one JSON line for each generation; None writes none."""

    @classmethod
    def parse(cls, engine_kwargs: Mapping[str, Any]) -> ServerOptions:
        """Raises ValueError for an unknown key."""
        options = dict(engine_kwargs.get(ROLLOUT_NAME) or {})
        unknown = sorted(options.keys() - {field.name for field in fields(cls)})
        if unknown:
            raise ValueError(f"rollout.engine_kwargs.{ROLLOUT_NAME} has no options {unknown}")
        return cls(**options)


class TransformersServer:
    """One replica's model. A Ray actor class: every method runs on the actor's event loop.

    The model starts with random weights; generating before the first `update_weights` is refused, so what is sampled
    was sampled with the trainer's weights.
    """

    def __init__(self, config: DictConfig, model_config: DictConfig, replica_rank: int) -> None:
        self._config: RolloutConfig = omega_conf_to_dataclass(config)
        model: HFModelConfig = omega_conf_to_dataclass(model_config)
        self._model = AutoModelForCausalLM.from_config(model.hf_config, dtype=torch.float32).eval()
        self._batch = ContinuousBatch(self._model, max_sequences=self._config.max_num_seqs)
        self._stop_ids = frozenset() if self._config.ignore_eos else _stop_ids(model)
        self._max_length = self._config.max_model_len or self._config.prompt_length + self._config.response_length
        # Requests that bring no seed get one from here, in order of arrival: reproducible only as far as that order is.
        self._seeds = random.Random(f"{self._config.seed}/{replica_rank}")
        options = ServerOptions.parse(self._config.engine_kwargs)
        self._engine_log = EngineLog(options.engine_log) if options.engine_log else None
        self._weights_version: int | None = None
        self._synchronised = False
        self._accepting = True
        self._futures: dict[int, asyncio.Future[Request]] = {}
        # Held while the batch is stepped or changed. Whoever waits for it waits for one decode step at most.
        self._lock = asyncio.Lock()
        self._decoding: asyncio.Task[None] | None = None

    async def generate(
        self,
        request_id: str,
        prompt_ids: list[int],
        sampling_params: dict[str, Any],
        image_data: Any = None,
        video_data: Any = None,
    ) -> TokenOutput:
        """Continue `prompt_ids` by at most `max_tokens` tokens, or to the model's length.

        A call that `abort_all_requests` cuts short, or that comes before `resume_generation`, returns what it has with
        the stop reason `aborted`; verl's asynchronous client then asks again.

        Raises:
            ValueError: the prompt leaves no room, or a sampling parameter is not supported.
            RuntimeError: the trainer has not sent its weights yet.
        """
        if image_data is not None or video_data is not None:
            raise ValueError(f"{ROLLOUT_NAME} generates from text only")
        if not self._synchronised:
            raise RuntimeError("generate() came before the first update_weights()")
        request = self._request(request_id, prompt_ids, Sampling.parse(sampling_params))
        version = self._weights_version
        if self._accepting:
            await self._decode(request)
        else:
            request.ending = Ending.ABORTED
        if self._engine_log is not None:
            self._engine_log.write(_record(request, sampling_params, (version, self._weights_version)))
        return TokenOutput(
            token_ids=request.token_ids,
            log_probs=request.logprobs if request.sampling.logprobs else None,
            stop_reason=request.ending,
            extra_fields={"global_steps": self._weights_version},
        )

    async def update_weights(self, state: dict[str, np.ndarray], global_steps: int | None) -> None:
        """Replace every weight; sequences that are being decoded go on with the new ones.

        Raises:
            ValueError: a weight is missing or unknown.
        """
        tensors = {name: torch.tensor(value) for name, value in state.items()}
        async with self._lock:
            tied = set(self._model.all_tied_weights_keys)
            missing, unexpected = self._model.load_state_dict(tensors, strict=False)
            missing = [name for name in missing if name not in tied]
            if missing or unexpected:
                raise ValueError(f"the trainer's weights do not fit the model: {missing=}, {unexpected=}")
            self._model.tie_weights()
            self._batch.forget()
            self._weights_version, self._synchronised = global_steps, True

    async def abort_all_requests(self, reject_request: bool = False) -> None:
        """End every generation where it stands and take no new one until `resume_generation`."""
        self._accepting = False
        async with self._lock:
            for request in self._batch.abort():
                self._resolve(request)

    async def resume_generation(self) -> None:
        self._accepting = True

    async def clear_kv_cache(self) -> None:
        async with self._lock:
            self._batch.forget()

    async def wake_up(self) -> None:
        """Nothing to do: on a CPU neither weights nor cache make room for the trainer. So for the calls below."""

    async def sleep(self) -> None: ...

    async def release_kv_cache(self) -> None: ...

    async def resume_kv_cache(self) -> None: ...

    async def start_profile(self, **_: Any) -> None: ...

    async def stop_profile(self) -> None: ...

    def _request(self, request_id: str, prompt_ids: list[int], sampling: Sampling) -> Request:
        room = self._max_length - len(prompt_ids)
        if room <= 0:
            raise ValueError(f"the prompt has {len(prompt_ids)} tokens, the model's length is {self._max_length}")
        wanted = self._config.response_length if sampling.max_tokens is None else sampling.max_tokens
        if wanted <= 0:
            raise ValueError(f"max_tokens must be positive, not {wanted}")
        return Request(
            request_id=request_id,
            prompt_ids=list(prompt_ids),
            sampling=sampling,
            max_tokens=min(room, wanted),
            stop_ids=self._stop_ids | sampling.stop_token_ids,
            seed=self._seeds.getrandbits(63) if sampling.seed is None else sampling.seed,
        )

    async def _decode(self, request: Request) -> None:
        future = asyncio.get_running_loop().create_future()
        self._futures[id(request)] = future
        self._batch.add(request)
        if self._decoding is None or self._decoding.done():
            self._decoding = asyncio.create_task(self._run())
        await future

    async def _run(self) -> None:
        """Step the batch until it is empty. A failing step fails everything that is being decoded."""
        try:
            while self._batch:
                async with self._lock:
                    for request in await asyncio.to_thread(self._batch.step):
                        self._resolve(request)
        except Exception as error:  # the boundary of the decode loop: its waiters must learn of it
            _log.exception("decoding failed")
            self._batch.abort()
            futures, self._futures = self._futures, {}
            for future in futures.values():
                future.set_exception(error)

    def _resolve(self, request: Request) -> None:
        future = self._futures.pop(id(request))
        if not future.done():
            future.set_result(request)


def _stop_ids(model: HFModelConfig) -> frozenset[int]:
    of_generation = getattr(model.generation_config, "eos_token_id", None)
    ids = [model.tokenizer.eos_token_id, *(of_generation if isinstance(of_generation, list) else [of_generation])]
    return frozenset(token for token in ids if token is not None)


def _record(request: Request, params: dict[str, Any], versions: tuple[int | None, int | None]) -> dict[str, Any]:
    return {
        "request_id": request.request_id,
        "prompt_ids": request.prompt_ids,
        "token_ids": request.token_ids,
        "log_probs": request.logprobs,
        "stop_reason": request.ending,
        "sampling_params": params,
        "seed": request.seed,
        "weights_version": versions,
    }
