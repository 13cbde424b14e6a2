# pyright: basic, reportMissingImports=false
"""verl's own SGLang replica and server, in processes that have the shim."""

from __future__ import annotations

from typing import Any

import ray

from rollout.verl_cpu.sglang import processes, shim

shim.install()

from sglang.srt.entrypoints import engine  # noqa: E402 - SGLang imports with the shim only
from verl.workers.rollout.sglang_rollout.async_sglang_server import SGLangHttpServer, SGLangReplica  # noqa: E402


class SGLangCPUServer(SGLangHttpServer):
    """verl's actor. That its class is of this module is what brings the shim into its process."""

    async def launch_server(self, *args: Any, **kwargs: Any) -> None:
        # verl hands SGLang the functions that it finds here, and SGLang spawns a process for each.
        engine.run_scheduler_process = processes.run_scheduler_process
        engine.run_detokenizer_process = processes.run_detokenizer_process
        await super().launch_server(*args, **kwargs)


class SGLangCPUReplica(SGLangReplica):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.server_class = ray.remote(SGLangCPUServer)
