# pyright: reportMissingImports=false
"""The processes that SGLang spawns, with the shim first. A spawned process imports this module to find its function."""

from __future__ import annotations

from typing import Any

from rollout.verl_cpu.sglang import shim

shim.install()


def run_scheduler_process(*args: Any, **kwargs: Any) -> None:
    from sglang.srt.managers.scheduler import run_scheduler_process as run

    run(*args, **kwargs)


def run_detokenizer_process(*args: Any, **kwargs: Any) -> None:
    from sglang.srt.managers.detokenizer_manager import run_detokenizer_process as run

    run(*args, **kwargs)
