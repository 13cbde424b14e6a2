# pyright: basic, reportMissingImports=false
"""AReaL on a machine without a GPU: what `prepare` changes in a process before AReaL is imported."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from itertools import pairwise
from types import ModuleType
from typing import Any

import torch

TRACKERS = ("swanlab", "trackio", "tensorboardX")
"""Experiment trackers that AReaL imports, whether they are used or not."""
SERVER_ARGUMENTS = ("model_path", "host", "port", "random_seed")
"""Arguments of AReaL's SGLang servers that mean the same without a GPU."""
KV_TOKENS = 65536
"""Size of a server's KV cache; by default SGLang fills the machine's memory."""


def prepare() -> None:
    """Prepare this process for `import areal`. Idempotent."""
    # AReaL marks functions for torch.compile, which would search for a C++ compiler at their first call.
    os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")
    if any(isinstance(finder, _Trackers) for finder in sys.meta_path):
        return
    # Last, so that it finds only trackers that are not installed.
    sys.meta_path.append(_Trackers())
    from transformers import masking_utils
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register("sdpa", PackedAttention(ALL_ATTENTION_FUNCTIONS["sdpa"]))
    masking_utils._preprocess_mask_arguments = _no_dictionaries(masking_utils._preprocess_mask_arguments)
    from areal.engine.sglang_remote import SGLangBackend
    from areal.utils.saver import Saver

    SGLangBackend.launch_server = launch_server
    # Only Archon's engine saves asynchronously, and the check for it imports triton, which there is for GPUs only.
    Saver._should_use_async = lambda _self, _engine: False


class PackedAttention:
    """Attention over the sequences that AReaL packs into one row, each of them by itself.

    AReaL gives the sequences' bounds to flash attention, which needs a GPU; others get no mask, and would look into the
    sequence before.

    Args:
        attention: transformers' attention over one sequence.
    """

    def __init__(self, attention: Any) -> None:
        self._attention = attention

    def __call__(
        self, module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, **arguments: Any
    ) -> tuple[torch.Tensor, None]:
        bounds = arguments.get("cu_seq_lens_q")
        if bounds is None:
            return self._attention(module, query, key, value, mask, **arguments)
        parts = [slice(begin, end) for begin, end in pairwise(bounds.tolist()) if end > begin]
        outputs = [
            self._attention(module, query[:, :, part], key[:, :, part], value[:, :, part], None, **arguments)[0]
            for part in parts
        ]
        return torch.cat(outputs, dim=1), None


def _no_dictionaries(prepared: Callable[..., Any]) -> Callable[..., Any]:
    """transformers' preparation of a mask, with none in the place of AReaL's dictionary of no masks.

    Models whose layers have masks of several kinds know it, such as Qwen's; Llama's take it for a tensor.
    """

    def without(config: Any, embeddings: torch.Tensor, mask: Any, *more: Any, **named: Any) -> Any:
        return prepared(config, embeddings, None if isinstance(mask, dict) else mask, *more, **named)

    return without


def launch_server(_: Any, server_args: dict[str, Any]) -> subprocess.Popen[bytes]:
    """Start SGLang's server as this project does without a GPU; AReaL's own command is for GPUs."""
    command = [sys.executable, "-m", "mcp_rollout.rollout.verl_cpu.sglang_server", "--max-total-tokens", str(KV_TOKENS)]
    for key in SERVER_ARGUMENTS:
        command += [f"--{key.replace('_', '-')}", str(server_args[key])]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL)


class _Trackers(MetaPathFinder, Loader):
    """Finds stand-ins for trackers that are not installed; everything in them can be called and does nothing."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return importlib.util.spec_from_loader(fullname, self) if fullname in TRACKERS else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Tracker(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


class _Tracker(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None
