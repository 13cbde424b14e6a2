# pyright: basic
"""The `transformers_cpu` inference server: generates from token ids, with weights that the trainer sends."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import anyio
import numpy as np
import torch
from omegaconf import DictConfig
from pydantic import BaseModel, ConfigDict
from transformers import AutoModelForCausalLM
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.config import HFModelConfig, RolloutConfig
from verl.workers.rollout.replica import TokenOutput

from mcp_rollout.gateway.config.pydantic_errors import validate
from mcp_rollout.gateway.private_files import make_private, private
from mcp_rollout.rollout.decoding.batch import Ending, Request
from mcp_rollout.rollout.decoding.decoder import Decoder
from mcp_rollout.rollout.decoding.sampling import Sampling, end_ids
from mcp_rollout.rollout.verl_cpu import ROLLOUT_NAME


class ServerOptions(BaseModel):
    """`actor_rollout_ref.rollout.engine_kwargs.transformers_cpu`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    engine_log: Path | None = None
    """File to which each generation appends one JSON line; None writes none."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where the model is; `cuda` is the GPU of the trainer's worker that sends the weights."""

    @classmethod
    def parse(cls, engine_kwargs: Mapping[str, Any]) -> ServerOptions:
        """Raises ConfigError for an unknown or wrong option."""
        options = dict(engine_kwargs.get(ROLLOUT_NAME) or {})
        return validate(cls, options, file=None, key=f"actor_rollout_ref.rollout.engine_kwargs.{ROLLOUT_NAME}")


class TransformersServer:
    """One replica's model, as a Ray actor: every method runs on the actor's event loop.

    It computes in `rollout.dtype`, whatever the trainer computes in. The model starts with random weights. `generate`
    raises until the first `update_weights`, so every token is sampled with the trainer's weights.
    """

    def __init__(self, config: DictConfig, model_config: DictConfig, replica_rank: int) -> None:
        self._config: RolloutConfig = omega_conf_to_dataclass(config)
        model: HFModelConfig = omega_conf_to_dataclass(model_config)
        options = ServerOptions.parse(self._config.engine_kwargs)
        self._model = AutoModelForCausalLM.from_config(model.hf_config, dtype=getattr(torch, self._config.dtype)).eval()
        self._model.to(options.device)
        self._decoder = Decoder(self._model, max_sequences=self._config.max_num_seqs)
        ends = end_ids(model.generation_config, model.tokenizer.eos_token_id)
        self._stop_ids = frozenset() if self._config.ignore_eos else ends
        self._max_length = self._config.max_model_len or self._config.prompt_length + self._config.response_length
        # Seeds for requests without one, in order of arrival: as reproducible as that order.
        self._seeds = random.Random(f"{self._config.seed}/{replica_rank}")
        self._engine_log = options.engine_log
        if self._engine_log is not None:
            make_private(self._engine_log.parent)
        self._weights_version: int | None = None
        self._synchronised = False
        self._resumed = anyio.Event()
        self._resumed.set()
        self._rejects = False

    async def generate(
        self,
        request_id: str,
        prompt_ids: list[int],
        sampling_params: dict[str, Any],
        image_data: Any = None,
        video_data: Any = None,
    ) -> TokenOutput:
        """Continue `prompt_ids` by at most `max_tokens` tokens, or up to the model's length.

        `abort_all_requests` ends a call with the tokens it has and the stop reason `aborted`; verl's asynchronous
        client then calls again. From then on calls wait for `resume_generation`, for as long as the trainer holds the
        engine, or are returned at once where the trainer rejects them.

        Raises:
            ValueError: the prompt leaves no room, or a sampling parameter is not supported.
            RuntimeError: the trainer has not sent weights yet.
        """
        if image_data is not None or video_data is not None:
            raise ValueError(f"{ROLLOUT_NAME} generates from text only")
        if not self._synchronised:
            raise RuntimeError("generate() came before the first update_weights()")
        request = self._request(request_id, prompt_ids, Sampling.parse(sampling_params))
        while not (self._resumed.is_set() or self._rejects):
            await self._resumed.wait()
        # No `await` between this look and the request's place in the batch: an abort finds it there.
        version = self._weights_version
        if self._resumed.is_set():
            await self._decoder.decode(request)
        else:
            request.ending = Ending.ABORTED
        if self._engine_log is not None:
            _log_generation(self._engine_log, request, sampling_params, (version, self._weights_version))
        return TokenOutput(
            token_ids=request.token_ids,
            log_probs=request.logprobs if request.sampling.logprobs else None,
            stop_reason=request.ending,
            extra_fields={"global_steps": self._weights_version},
        )

    async def update_weights(self, state: dict[str, np.ndarray], global_steps: int | None) -> None:
        """Replace all weights; running sequences continue with the new ones.

        Raises:
            ValueError: a weight is missing or unknown.
        """
        tensors = {name: torch.tensor(value) for name, value in state.items()}
        async with self._decoder.changed_weights():
            tied = set(self._model.all_tied_weights_keys)
            missing, unexpected = self._model.load_state_dict(tensors, strict=False)
            missing = [name for name in missing if name not in tied]
            if missing or unexpected:
                raise ValueError(f"the trainer's weights do not fit the model: {missing=}, {unexpected=}")
            self._model.tie_weights()
            self._weights_version, self._synchronised = global_steps, True

    async def abort_all_requests(self, reject_request: bool = False) -> None:
        """End every running generation, and begin none until `resume_generation`.

        Args:
            reject_request: Return calls with the stop reason `aborted` instead of letting them wait: another server
                has to take them.
        """
        resumed, self._rejects = self._resumed, reject_request
        self._resumed = anyio.Event()
        resumed.set()  # calls that wait already look again
        await self._decoder.abort_all()

    async def resume_generation(self) -> None:
        self._rejects = False
        self._resumed.set()

    async def clear_kv_cache(self) -> None:
        async with self._decoder.changed_weights():
            pass

    # No-ops: neither weights nor KV cache make room for the trainer, and there is no profiler.

    async def wake_up(self) -> None: ...

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


def _log_generation(
    file: Path, request: Request, params: dict[str, Any], versions: tuple[int | None, int | None]
) -> None:
    """Append a generation to the engine log, which tests compare traces with; no code of the agent loop writes it."""
    record = {
        "request_id": request.request_id,
        "prompt_ids": request.prompt_ids,
        "token_ids": request.token_ids,
        "log_probs": request.logprobs,
        "stop_reason": request.ending,
        "sampling_params": params,
        "seed": request.seed,
        "weights_version": versions,
    }
    # Unbuffered: a record is one write, so that several servers may append to the same file.
    with open(file, "ab", buffering=0, opener=private) as log:
        log.write(json.dumps(record).encode() + b"\n")
