# pyright: basic, reportMissingImports=false
"""verl's own SGLang adapter: the trainer's end of the weight synchronisation, with tensors in shared memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from rollout.verl_cpu.sglang import shim

shim.install()

from sglang.srt.utils import patch_torch  # noqa: E402 - SGLang imports with the shim only
from verl.workers.rollout.sglang_rollout.sglang_rollout import ServerAdapter  # noqa: E402

_modify_tuple = patch_torch._modify_tuple


def _modify_where_present(values: tuple[Any, ...], index: int, modifier: Callable[[Any], Any]) -> tuple[Any, ...]:
    return _modify_tuple(values, index, modifier) if index < len(values) else values


# SGLang replaces the device in what torch pickles for a tensor; a tensor in host memory has no such field.
patch_torch._modify_tuple = _modify_where_present
# A pickled tensor names its memory. By file descriptor, torch's default, SGLang's process could not open it.
torch.multiprocessing.set_sharing_strategy("file_system")


class SGLangCPUAdapter(ServerAdapter):
    """verl's, unchanged. Named here so that looking it up imports this module first."""
