# pyright: basic
"""The classes that verl looks up for `transformers_cpu`: replica in the trainer, adapter in the FSDP worker."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Generator
from typing import Any

import ray
import torch
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from verl.plugin.platform import get_platform
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutMode, RolloutReplica
from verl.workers.rollout.utils import ensure_async_iterator

from mcp_rollout.rollout.verl_cpu import ROLLOUT_NAME
from mcp_rollout.rollout.verl_cpu.server import ServerOptions, TransformersServer

Weights = Generator[tuple[str, torch.Tensor], None, None] | AsyncGenerator[tuple[str, torch.Tensor], None]


def _actor_name(replica_rank: int) -> str:
    return f"{ROLLOUT_NAME}_{replica_rank}"


class TransformersReplica(RolloutReplica):
    """One inference server, next to the training workers that send it their weights or with a worker of its own."""

    server_class = TransformersServer

    async def launch_servers(self) -> None:
        """Start the server actor.

        Raises:
            ValueError: no trainer would send weights in this mode, or the model is to be split.
        """
        if self.rollout_mode not in (RolloutMode.HYBRID, RolloutMode.STANDALONE):
            raise ValueError(f"{ROLLOUT_NAME} gets its weights from a trainer, not in mode {self.rollout_mode}")
        if self.world_size != 1:
            raise ValueError(f"{ROLLOUT_NAME} does not split a model: set tensor_model_parallel_size=1")
        name = _actor_name(self.replica_rank)
        place = {} if ServerOptions.parse(self.config.engine_kwargs).device == "cpu" else await _beside(self.workers[0])
        actor = ray.remote(self.server_class).options(
            name=name, num_cpus=0, max_concurrency=self.max_concurrency, **place
        )
        server: Any = actor.remote(self.config, self.model_config, self.replica_rank)
        await server.wake_up.remote()  # raises what the constructor raised
        self.servers = [server]
        self._server_handle, self._server_address = server, name


async def _beside(worker: Any) -> dict[str, Any]:
    """Options of an actor that shares a worker's GPU: Ray has given all of it to workers, as verl's pools ask."""
    variable = get_platform().visible_devices_envvar()
    node, visible = await worker.__ray_call__.remote(
        lambda _: (ray.get_runtime_context().get_node_id(), os.environ[variable])
    )
    variables = {variable: visible, **dict.fromkeys(get_platform().ray_noset_envvars(), "1")}
    return {
        "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False),
        "runtime_env": {"env_vars": variables},
    }


class TransformersAdapter(BaseRollout):
    """The end of the weight synchronisation: in the trainer's worker, or in that of a standalone replica.

    Args:
        replica_rank: Of the standalone replica; None for the replica of the trainer's own rank.
    """

    is_leader_rank = True

    def __init__(self, *args: Any, replica_rank: int | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._replica_rank = replica_rank

    @property
    def replica_rank(self) -> int:
        return torch.distributed.get_rank() if self._replica_rank is None else self._replica_rank

    async def resume(self, tags: list[str]) -> None: ...

    async def release(self) -> None: ...

    async def update_weights(
        self,
        weights: Weights,
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
        named = ensure_async_iterator(weights)
        state = {name: tensor.detach().cpu().float().numpy() async for name, tensor in named}
        server: Any = ray.get_actor(_actor_name(self.replica_rank))
        await server.update_weights.remote(state, global_steps)
