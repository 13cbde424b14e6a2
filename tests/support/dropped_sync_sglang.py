"""verl's SGLang adapter, losing one weight synchronisation; dropped_sync registers it."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import torch
from dropped_sync import DROPPED_AFTER_STEP

from mcp_rollout.rollout.verl_cpu.sglang_replica import SGLangCPUAdapter


class ForgetfulSGLangAdapter(SGLangCPUAdapter):
    async def update_weights(
        self, weights: Generator[tuple[str, torch.Tensor], None, None], *args: Any, **kwargs: Any
    ) -> None:
        if kwargs["global_steps"] == DROPPED_AFTER_STEP:
            for _ in weights:
                pass
        else:
            await super().update_weights(weights, *args, **kwargs)
