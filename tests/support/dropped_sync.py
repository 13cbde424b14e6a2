"""A rollout that loses one weight synchronisation, so that a test can see its check fail.

Loaded into every verl process with VERL_USE_EXTERNAL_MODULES=dropped_sync; select it with
`actor_rollout_ref.rollout.name=dropped_sync`, or keep the name `sglang`.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import torch
from verl.workers.rollout.base import _ROLLOUT_REGISTRY
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry

import mcp_rollout.rollout.verl_cpu.accelerator  # noqa: F401 - registers before the replacements below
from mcp_rollout.rollout.verl_cpu.replica import TransformersAdapter, TransformersReplica

DROPPED_AFTER_STEP = 2


class ForgetfulAdapter(TransformersAdapter):
    async def update_weights(
        self, weights: Generator[tuple[str, torch.Tensor], None, None], *args: Any, **kwargs: Any
    ) -> None:
        if kwargs["global_steps"] == DROPPED_AFTER_STEP:
            for _ in weights:
                pass
        else:
            await super().update_weights(weights, *args, **kwargs)


def _load_replica() -> type[RolloutReplica]:
    return TransformersReplica


_ROLLOUT_REGISTRY[("dropped_sync", "async")] = "dropped_sync.ForgetfulAdapter"
_ROLLOUT_REGISTRY[("sglang", "async")] = "dropped_sync_sglang.ForgetfulSGLangAdapter"
RolloutReplicaRegistry.register("dropped_sync", _load_replica)
