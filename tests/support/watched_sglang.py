"""verl's SGLang adapter, which keeps the weights of every version; watched_engine registers it."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import torch

from mcp_rollout.rollout.verl_cpu.sglang_replica import SGLangCPUAdapter


class WatchedSGLangAdapter(SGLangCPUAdapter):
    async def update_weights(
        self, weights: Generator[tuple[str, torch.Tensor], None, None], *args: Any, **kwargs: Any
    ) -> None:
        kept: dict[str, torch.Tensor] = {}

        def copied() -> Generator[tuple[str, torch.Tensor], None, None]:
            for name, tensor in weights:
                kept[name] = tensor.detach().clone()
                yield name, tensor

        await super().update_weights(copied(), *args, **kwargs)
        (log,) = self.config.engine_kwargs["sglang"]["log_requests_target"]
        torch.save(kept, Path(log).parent / f"weights_{kwargs['global_steps']}.pt")
