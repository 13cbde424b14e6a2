"""A CPU engine that keeps the weights of every version, and decodes slowly enough to be interrupted.

Loaded into every verl process with VERL_USE_EXTERNAL_MODULES=watched_engine. It takes the CPU engine's place, and is
one that is not ours as `actor_rollout_ref.rollout.name=watched`. It writes weights_VERSION.pt beside its engine log;
SGLang's trainer does so where its own log is.
"""

from __future__ import annotations

import os
import time
from typing import Any

import torch
from verl.workers.rollout.base import _ROLLOUT_REGISTRY
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry

import mcp_rollout.rollout.verl_cpu.accelerator  # noqa: F401 - registers before what is added below
from mcp_rollout.rollout.verl_cpu import ROLLOUT_NAME
from mcp_rollout.rollout.verl_cpu.replica import TransformersReplica
from mcp_rollout.rollout.verl_cpu.server import TransformersServer


class WatchedServer(TransformersServer):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        step_s = float(os.environ.get("DECODE_STEP_S", "0"))
        self._model.register_forward_pre_hook(lambda *_: time.sleep(step_s))

    async def update_weights(self, state: dict[str, Any], global_steps: int | None) -> None:
        assert self._engine_log is not None
        kept = {name: torch.tensor(value) for name, value in state.items()}
        torch.save(kept, self._engine_log.parent / f"weights_{global_steps}.pt")
        await super().update_weights(state, global_steps)


class WatchedReplica(TransformersReplica):
    server_class = WatchedServer


def _load_replica() -> type[RolloutReplica]:
    return WatchedReplica


_ROLLOUT_REGISTRY[("watched", "async")] = "mcp_rollout.rollout.verl_cpu.replica.TransformersAdapter"
_ROLLOUT_REGISTRY[("sglang", "async")] = "watched_sglang.WatchedSGLangAdapter"
for _name in ("watched", ROLLOUT_NAME):
    RolloutReplicaRegistry.register(_name, _load_replica)
