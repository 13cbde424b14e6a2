# pyright: basic
"""The `cpu` platform, and its registration with verl 0.9.1: all changes that this package makes in verl.

Every registration is process-wide.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from contextlib import nullcontext
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch.distributed.fsdp import OffloadPolicy
from verl.plugin.platform import PlatformBase, set_platform
from verl.utils import distributed
from verl.workers.rollout.base import _ROLLOUT_REGISTRY
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry

from mcp_rollout.rollout.verl_cpu import ROLLOUT_NAME

PYTHON_VARIABLE = "MCP_ROLLOUT_PYTHON"

_ROLLOUTS = {
    ROLLOUT_NAME: ("mcp_rollout.rollout.verl_cpu.replica", "TransformersAdapter", "TransformersReplica"),
    # verl's own SGLang rollout, importable here because stand-ins replace SGLang's GPU packages.
    "sglang": ("mcp_rollout.rollout.verl_cpu.sglang_replica", "SGLangCPUAdapter", "SGLangCPUReplica"),
}
"""Module, adapter and replica by the value of `actor_rollout_ref.rollout.name`."""


class UnsupportedVerl(RuntimeError):
    """The installed verl lacks something that this package registers with."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}; mcp_rollout.rollout.verl_cpu is written for verl 0.9.1, install that version")


def _nothing(*_: Any, **__: Any) -> None:
    """No-op for operations that only an accelerator has."""


def _device_module() -> ModuleType:
    """The namespace that verl uses like `torch.cuda`. A CPU has no allocator of its own: memory is 0 bytes."""
    module = ModuleType("mcp_rollout.rollout.verl_cpu.device")
    memory = ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved")
    module.__dict__.update(
        dict.fromkeys(memory, lambda *_: 0),
        is_available=lambda: False,  # verl asks this before optional work on an accelerator
        get_device_name=lambda *_: "CPU",
        current_device=lambda: torch.device("cpu"),
        mem_get_info=lambda *_: (0, 0),
        empty_cache=_nothing,
        synchronize=_nothing,
        set_device=_nothing,
        get_rng_state=torch.get_rng_state,
        set_rng_state=torch.set_rng_state,
    )
    return module


class CPUPlatform(PlatformBase):
    """The host CPU in the role of verl's accelerator."""

    device_name: Any = "cpu"
    vendor_name: Any = "cpu"
    device_module: Any = _device_module()

    set_device = synchronize = set_allocator_settings = empty_cache = staticmethod(_nothing)
    profiler_start = profiler_stop = cudart = staticmethod(_nothing)

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        """Return False: it is not registered for detection, since every machine has a CPU."""
        return False

    def current_device(self) -> Any:
        """Return a device, not an index: verl calls `tensor.to(current_device())`, and torch reads an int as a GPU."""
        return torch.device("cpu")

    def device_count(self) -> int:
        return 1

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    def nvtx_range(self, msg: str) -> nullcontext[None]:
        return nullcontext()

    def ray_resource_name(self) -> str:
        """Return `GPU`: verl's resource pools count GPU or NPU only; configs/engine/cpu.yaml gives Ray a fake one."""
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False


def register() -> None:
    """Make verl compute with `trainer.device=cpu`, and on it with `rollout.name=transformers_cpu` and `sglang`.

    verl warns where it has found another platform before, as in the process that the user starts.

    Raises:
        UnsupportedVerl: verl's internals are not those of 0.9.1.
    """
    set_platform(CPUPlatform())
    register_rollouts(*_ROLLOUTS)
    _set_process_group_backend()
    _register_training_engine()
    # configs/engine/cpu.yaml names this interpreter by the variable: verl does not resolve interpolations in Ray's
    # arguments, but Ray starts workers through a shell, and its processes inherit the variable.
    os.environ.setdefault(PYTHON_VARIABLE, sys.executable)


def register_rollouts(*names: str) -> None:
    """Make verl accept these values of `rollout.name`, on any platform. Idempotent.

    Raises:
        UnsupportedVerl: verl's internals are not those of 0.9.1.
    """
    if not isinstance(_ROLLOUT_REGISTRY, dict) or ("sglang", "async") not in _ROLLOUT_REGISTRY:
        raise UnsupportedVerl("verl.workers.rollout.base._ROLLOUT_REGISTRY is not the table of rollout adapters")
    # The FSDP worker looks up the adapter, the trainer the replica. Both are imported at the lookup: they are heavy.
    for name in names:
        module, adapter, replica = _ROLLOUTS[name]
        _ROLLOUT_REGISTRY[name, "async"] = f"{module}.{adapter}"
        RolloutReplicaRegistry.register(name, partial(_load_replica, module, replica))


def _load_replica(module: str, name: str) -> type[RolloutReplica]:
    return getattr(importlib.import_module(module), name)


def _set_process_group_backend() -> None:
    # verl asks torch for "cpu:gloo,{device}:{backend}", here "cpu:gloo,cpu:gloo", which torch rejects as a duplicate.
    function = distributed.initialize_global_process_group_ray
    if list(inspect.signature(function).parameters) != ["timeout_second", "backend"]:
        raise UnsupportedVerl("verl.utils.distributed.initialize_global_process_group_ray has another signature")
    function.__defaults__ = (None, "cpu:gloo")


def _register_training_engine() -> None:
    # verl's FSDP engine runs on any device, but is registered for cuda and npu only.
    from verl.workers.engine.base import EngineRegistry
    from verl.workers.engine.fsdp import transformer_impl

    FSDPEngineWithLMHead = transformer_impl.FSDPEngineWithLMHead
    try:
        devices = EngineRegistry._engines["language_model"]["fsdp2"]
    except (AttributeError, KeyError) as error:
        raise UnsupportedVerl("verl.workers.engine.base.EngineRegistry has no language_model/fsdp2 table") from error
    if devices.get("cuda", FSDPEngineWithLMHead) is not FSDPEngineWithLMHead:
        raise UnsupportedVerl("verl's fsdp2 engine is not FSDPEngineWithLMHead")
    devices["cpu"] = FSDPEngineWithLMHead
    if not hasattr(transformer_impl, "CPUOffloadPolicy"):
        raise UnsupportedVerl("verl.workers.engine.fsdp.transformer_impl has no CPUOffloadPolicy")
    # verl keeps a reference model in pinned host memory, which only an accelerator can read. It is in host memory here.
    transformer_impl.CPUOffloadPolicy = lambda pin_memory: OffloadPolicy()  # pyright: ignore[reportPrivateImportUsage]
