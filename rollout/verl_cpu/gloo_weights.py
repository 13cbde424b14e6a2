# pyright: basic
"""verl's checkpoint engine `gloo`: sends weights from the trainer to engines on other devices, over torch's gloo.

Named by `backend: gloo` and `custom_backend_module: rollout.verl_cpu.gloo_weights` in
`actor_rollout_ref.rollout.checkpoint_engine`.
"""

from __future__ import annotations

import datetime
import pickle
from collections.abc import AsyncGenerator, Generator
from typing import Any

import ray
import torch
from torch.distributed import ProcessGroupGloo, TCPStore  # pyright: ignore[reportPrivateImportUsage]
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry
from verl.utils.net_utils import get_free_port


@CheckpointEngineRegistry.register("gloo")  # pyright: ignore[reportAttributeAccessIssue]
class GlooWeights(CheckpointEngine):
    """Actor rank 0 broadcasts to all workers of the engines; further actor ranks help to gather, and send nothing.

    Args:
        bucket_size: Unused: a tensor is sent at a time.
        is_master: Whether this is actor rank 0.
        timeout_s: How long workers wait for each other, and for a tensor (`engine_kwargs.gloo.timeout_s`).
    """

    def __init__(self, bucket_size: int, is_master: bool = False, timeout_s: float = 300.0) -> None:
        self._is_master, self._timeout = is_master, datetime.timedelta(seconds=timeout_s)
        self._store: TCPStore | None = None
        self._group: Any = None

    def prepare(self) -> dict[str, Any]:
        """Open the store of the next group at the master; its address is the group's metadata."""
        if not self._is_master:
            return {}
        host = ray.util.get_node_ip_address().strip("[]")
        port, _ = get_free_port(host)
        self._store = TCPStore(host, port, is_master=True, wait_for_workers=False, timeout=self._timeout)
        return {"host": host, "port": port}

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict[str, Any]]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        size = rollout_world_size + 1

        def arguments(ranks: list[int]) -> dict[str, list[Any]]:
            return {"rank": ranks, "size": [size] * len(ranks), "store": [metadata[0]] * len(ranks)}

        return arguments([0] + [-1] * (actor_wg_world_size - 1)), arguments(list(range(1, size)))

    def init_process_group(self, rank: int, size: int, store: dict[str, Any]) -> None:
        """Join the group; a negative rank is not in it."""
        if rank < 0:
            return
        if self._store is None:
            self._store = TCPStore(store["host"], store["port"], is_master=False, timeout=self._timeout)
        # Made by hand: torch's default group is the trainer's own.
        self._group = ProcessGroupGloo(self._store, rank, size, self._timeout)

    def finalize(self) -> None:
        self._group = self._store = None

    @torch.no_grad()
    async def send_weights(
        self, weights: Generator[tuple[str, torch.Tensor], None, None], global_steps: int | None = None
    ) -> dict[str, float]:
        """Send all tensors; returns the metric `gloo/sent_bytes`."""
        # Gathering a sharded tensor is a collective operation, so every rank consumes the whole generator.
        state = [(name, tensor.detach().cpu().contiguous()) for name, tensor in weights]
        if self._group is None:
            return {}
        head = pickle.dumps([(name, tuple(tensor.shape), tensor.dtype) for name, tensor in state])
        self._broadcast(torch.tensor([len(head)]))
        self._broadcast(torch.frombuffer(bytearray(head), dtype=torch.uint8))
        for _, tensor in state:
            self._broadcast(tensor.view(-1).view(torch.uint8))
        return {"gloo/sent_bytes": float(sum(tensor.nbytes for _, tensor in state))}

    @torch.no_grad()
    async def receive_weights(self, global_steps: int | None = None) -> AsyncGenerator[tuple[str, torch.Tensor], None]:
        head = torch.zeros(int(self._broadcast(torch.zeros(1, dtype=torch.int64))), dtype=torch.uint8)
        for name, shape, dtype in pickle.loads(self._broadcast(head).numpy().tobytes()):
            tensor = torch.empty(shape, dtype=dtype)
            self._broadcast(tensor.view(-1).view(torch.uint8))
            yield name, tensor

    def _broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        self._group.broadcast(tensor, 0).wait()
        return tensor
