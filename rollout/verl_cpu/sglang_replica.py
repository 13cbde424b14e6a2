# pyright: basic, reportMissingImports=false
"""verl's own SGLang rollout without a GPU: its adapter, server and replica in processes that have the shim.

verl looks up `SGLangCPUAdapter` in the FSDP worker, the trainer's end of the weight synchronisation, and
`SGLangCPUReplica` in the trainer. Looking up either imports this module, which prepares the process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ray
import torch

from mcp_rollout.rollout.verl_cpu import sglang_server, sglang_shim

sglang_shim.install()

from sglang.srt.entrypoints import engine  # noqa: E402 - SGLang imports with the shim only
from sglang.srt.utils import patch_torch  # noqa: E402
from verl.workers.rollout.sglang_rollout.async_sglang_server import SGLangHttpServer, SGLangReplica  # noqa: E402
from verl.workers.rollout.sglang_rollout.sglang_rollout import ServerAdapter  # noqa: E402

_modify_tuple = patch_torch._modify_tuple


def _modify_if_present(values: tuple[Any, ...], index: int, modifier: Callable[[Any], Any]) -> tuple[Any, ...]:
    return _modify_tuple(values, index, modifier) if index < len(values) else values


# SGLang replaces the device in torch's pickled form of a tensor; a tensor in host memory has no such field.
patch_torch._modify_tuple = _modify_if_present
# A pickled tensor refers to shared memory. SGLang's process could not open a file descriptor, torch's default.
torch.multiprocessing.set_sharing_strategy("file_system")


class SGLangCPUAdapter(ServerAdapter):
    """verl's adapter, unchanged."""


class SGLangCPUServer(SGLangHttpServer):
    """verl's actor; as a class of this module it brings the shim into the actor's process."""

    async def launch_server(self, *args: Any, **kwargs: Any) -> None:
        # verl passes SGLang the functions that it finds here, and SGLang spawns a process for each.
        engine.run_scheduler_process = sglang_server.run_scheduler_process
        engine.run_detokenizer_process = sglang_server.run_detokenizer_process
        await super().launch_server(*args, **kwargs)


class SGLangCPUReplica(SGLangReplica):
    """verl's replica with `SGLangCPUServer` as its server class."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.server_class = ray.remote(SGLangCPUServer)
