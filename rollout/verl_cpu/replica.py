# pyright: basic
"""The classes that verl looks up for `transformers_cpu`: replica in the trainer, adapter in the FSDP worker."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import ray
import torch
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutMode, RolloutReplica

from rollout.verl_cpu import ROLLOUT_NAME
from rollout.verl_cpu.server import TransformersServer


def _actor_name(replica_rank: int) -> str:
    return f"{ROLLOUT_NAME}_{replica_rank}"


class TransformersReplica(RolloutReplica):
    """One inference server next to the training workers that send it their weights."""

    async def launch_servers(self) -> None:
        """Start the server actor.

        Raises:
            ValueError: the mode is not hybrid, so no trainer would send weights, or the model is to be split.
        """
        if self.rollout_mode is not RolloutMode.HYBRID:
            raise ValueError(f"{ROLLOUT_NAME} works with a colocated trainer only, not in mode {self.rollout_mode}")
        if self.world_size != 1:
            raise ValueError(f"{ROLLOUT_NAME} does not split a model: set tensor_model_parallel_size=1")
        name = _actor_name(self.replica_rank)
        actor = ray.remote(TransformersServer).options(name=name, num_cpus=0, max_concurrency=self.max_concurrency)
        server: Any = actor.remote(self.config, self.model_config, self.replica_rank)
        await server.wake_up.remote()  # raises what the constructor raised
        self.servers = [server]
        self._server_handle, self._server_address = server, name


class TransformersAdapter(BaseRollout):
    """The trainer's end of the weight synchronisation."""

    async def resume(self, tags: list[str]) -> None: ...

    async def release(self) -> None: ...

    async def update_weights(
        self,
        weights: Generator[tuple[str, torch.Tensor], None, None],
        wire_format: str = "named_tensors",
        global_steps: int | None = None,
        peft_config: Any = None,
        **_: Any,
    ) -> None:
        """Send all weights to this rank's server, as float32: numpy, which Ray shares without a copy, has no bfloat16.

        Raises:
            ValueError: verl sends another format than full tensors.
        """
        if wire_format != "named_tensors" or peft_config is not None:
            raise ValueError(f"{ROLLOUT_NAME} takes full tensors only; for LoRA set model.lora.merge=True")
        # Gathering a sharded tensor is a collective operation, so every rank consumes the whole generator.
        state = {name: tensor.detach().cpu().float().numpy() for name, tensor in weights}
        server: Any = ray.get_actor(_actor_name(torch.distributed.get_rank()))
        await server.update_weights.remote(state, global_steps)
