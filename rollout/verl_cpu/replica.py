# pyright: basic
"""The two halves that verl looks up by name: the replica in the trainer, the adapter in the FSDP worker."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import ray
import torch
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutMode, RolloutReplica

from rollout.verl_cpu.names import ROLLOUT_NAME
from rollout.verl_cpu.server import TransformersServer


def _server_name(replica_rank: int) -> str:
    return f"{ROLLOUT_NAME}_{replica_rank}"


class TransformersReplica(RolloutReplica):
    """One server beside the training workers whose weights it gets."""

    async def launch_servers(self) -> None:
        """Raises ValueError outside of hybrid mode: nobody would send the server its weights."""
        if self.rollout_mode is not RolloutMode.HYBRID:
            raise ValueError(f"{ROLLOUT_NAME} works with a colocated trainer only, not in mode {self.rollout_mode}")
        if self.world_size != 1:
            raise ValueError(f"{ROLLOUT_NAME} does not split a model: set tensor_model_parallel_size=1")
        name = _server_name(self.replica_rank)
        actor = ray.remote(TransformersServer).options(name=name, num_cpus=0, max_concurrency=self.max_concurrency)
        server: Any = actor.remote(self.config, self.model_config, self.replica_rank)
        await server.wake_up.remote()  # returns once the constructor has, or raises what it raised
        self.servers = [server]
        self._server_handle, self._server_address = server, name


class TransformersAdapter(BaseRollout):
    """The trainer's end of the weight synchronisation."""

    async def resume(self, tags: list[str]) -> None:
        pass

    async def release(self) -> None:
        pass

    async def update_weights(
        self,
        weights: Generator[tuple[str, torch.Tensor], None, None],
        wire_format: str = "named_tensors",
        global_steps: int | None = None,
        peft_config: Any = None,
        **_: Any,
    ) -> None:
        """Send full float32 tensors to this rank's server.

        Raises:
            ValueError: verl sends something else than full tensors.
        """
        if wire_format != "named_tensors" or peft_config is not None:
            raise ValueError(f"{ROLLOUT_NAME} takes full tensors only; for LoRA set model.lora.merge=True")
        # Gathering a sharded tensor is collective, so every rank runs the generator to its end.
        state = {name: tensor.detach().cpu().float().numpy() for name, tensor in weights}
        server: Any = ray.get_actor(_server_name(torch.distributed.get_rank()))
        await server.update_weights.remote(state, global_steps)
